#include <tapehead/core/errors.h>
#include <tapehead/nn/tasks.h>

namespace tapehead {

RecallTask::Batch RecallTask::draw(Generator& random, Index batch) const {
  if (pairs > keys) {
    throw DomainError("RecallTask",
                      std::to_string(pairs) + " pairs of only " + std::to_string(keys) + " keys");
  }
  Batch result{Array<Index>::uninitialized({batch, length()}),
               Array<Index>::full({batch, length()}, no_target)};
  Index* token = result.tokens.mutable_values().data();
  Index* target = result.targets.mutable_values().data();
  for (Index b = 0; b < batch; ++b, token += length(), target += length()) {
    const Array<Index> key = random.permutation(keys), again = random.permutation(pairs);
    for (Index i = 0; i < pairs; ++i) {
      token[2 * i] = key(i);
      token[2 * i + 1] = keys + random.below(values);
    }
    for (Index i = 0; i < pairs; ++i) {
      const Index pair = again(i), at = 2 * (pairs + i);
      token[at] = token[2 * pair];
      token[at + 1] = target[at] = token[2 * pair + 1];
    }
  }
  return result;
}

ReverseTask::Batch ReverseTask::draw(Generator& random, Index batch) const {
  Batch result{random.integers({batch, length}, symbols), Array<Index>::uninitialized({batch, length}),
               Array<Index>::uninitialized({batch, length})};
  Index* input = result.input.mutable_values().data();
  Index* target = result.targets.mutable_values().data();
  for (Index b = 0; b < batch; ++b) {
    for (Index i = 0; i < length; ++i) {
      target[b * length + i] = result.source(b, length - 1 - i);
      input[b * length + i] = i == 0 ? start() : target[b * length + i - 1];
    }
  }
  return result;
}

ReverseTask::Joined ReverseTask::joined(const Batch& batch) {
  const Index sequences = batch.source.dim(0), length = batch.source.dim(1);
  Joined result{Array<Index>::uninitialized({sequences, 2 * length}),
                Array<Index>::full({sequences, 2 * length}, no_target)};
  for (Index b = 0; b < sequences; ++b) {
    for (Index i = 0; i < length; ++i) {
      result.tokens.set({b, i}, batch.source(b, i));
      result.tokens.set({b, length + i}, batch.input(b, i));
      result.targets.set({b, length + i}, batch.targets(b, i));
    }
  }
  return result;
}

}  // namespace tapehead
