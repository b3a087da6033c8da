#!/usr/bin/env python3
"""Runs all-MiniLM-L6-v2 on five sentences in PyTorch and writes what it computes: minilm_reference.py MODEL OUT

MODEL is a folder with model.safetensors, config.json and tokenizer.json; OUT the file to write. scripts/fetch-minilm
calls this. The weights are widened to float64, so the numbers are those of the model to about 1e-13. In OUT, B = 5
sentences of at most L tokens, M = 384, H = 12:

    tokens (B, L), lengths (B)        [CLS] ... [SEP], then padding
    hidden_states (7, B, L, M)        the normed embeddings, then what each layer gives; padding included
    attention (6, B, H, L, L)         weights, 0 at padded keys
    pooled, embeddings (B, M)         the mean over the tokens of a sentence, and that divided by its length
    similarity, labels (B, B)         cosines, and 1 for two sentences on one subject
    loss ()                           mean of (similarity - labels)^2
    gradient_rows (U)                 the tokens that occur, rising, and for each the row of the gradient of the loss
    gradient (U, M)                   with respect to the table of word embeddings; all other rows are 0

The metadata keys sentence.0 ... hold the texts, and tokens.0 ... their tokens with a blank between them.
"""
import json
import math
import os
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

SENTENCES = [
    "The cat sat on the mat because it was tired.",
    "A sleepy kitten lay down on the rug.",
    "The central bank raised interest rates to slow inflation.",
    "Borrowing money gets more expensive when the bank raises its rates.",
    "She sat on the bank of the river and watched the boats go by.",
]
SUBJECTS = torch.tensor([0, 0, 1, 1, 2])


class Bert:
    """BERT's encoder, Devlin and others, 2019, with the parameter names of its published files."""

    def __init__(self, state, config):
        self.state, self.config = state, config

    def linear(self, name, x):
        return F.linear(x, self.state[name + ".weight"], self.state[name + ".bias"])

    def norm(self, name, x):
        weight, bias = self.state[name + ".weight"], self.state[name + ".bias"]
        return F.layer_norm(x, weight.shape, weight, bias, self.config["layer_norm_eps"])

    def embedded(self, tokens):
        table = "embeddings.%s_embeddings.weight"
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        x = F.embedding(tokens, self.state[table % "word"])
        x = x + F.embedding(torch.zeros_like(tokens), self.state[table % "token_type"])
        x = x + F.embedding(positions, self.state[table % "position"])
        return self.norm("embeddings.LayerNorm", x)

    def attention(self, name, x, seen):
        B, L, M = x.shape
        heads = self.config["num_attention_heads"]

        def by_head(part):
            return self.linear(f"{name}.self.{part}", x).view(B, L, heads, M // heads).transpose(1, 2)

        scores = by_head("query") @ by_head("key").transpose(-1, -2) / math.sqrt(M // heads)
        weights = scores.masked_fill(~seen[:, None, None, :], -math.inf).softmax(-1)
        joined = (weights @ by_head("value")).transpose(1, 2).reshape(B, L, M)
        return self.norm(f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", joined)), weights

    def layer(self, name, x, seen):
        x, weights = self.attention(f"{name}.attention", x, seen)
        inner = F.gelu(self.linear(f"{name}.intermediate.dense", x))
        return self.norm(f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", inner)), weights

    def __call__(self, tokens, seen):
        hidden, attention = [self.embedded(tokens)], []
        for i in range(self.config["num_hidden_layers"]):
            x, weights = self.layer(f"encoder.layer.{i}", hidden[-1], seen)
            hidden.append(x)
            attention.append(weights)
        return torch.stack(hidden), torch.stack(attention)


def tokenized(folder):
    """Token ids (B, L), lengths (B), and the tokens of each sentence."""
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encodings = [tokenizer.encode(text) for text in SENTENCES]
    ids = [torch.tensor(encoding.ids) for encoding in encodings]
    lengths = torch.tensor([len(row) for row in ids])
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), lengths, [e.tokens for e in encodings]


def main():
    folder, out = sys.argv[1:]
    torch.set_num_threads(1)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    state = load_file(os.path.join(folder, "model.safetensors"))
    state = {name: x.double() if x.is_floating_point() else x for name, x in state.items()}
    table = state["embeddings.word_embeddings.weight"].requires_grad_(True)

    tokens, lengths, pieces = tokenized(folder)
    seen = torch.arange(tokens.shape[1]) < lengths[:, None]
    hidden, attention = Bert(state, config)(tokens, seen)
    pooled = (hidden[-1] * seen[:, :, None]).sum(1) / lengths[:, None]
    embeddings = F.normalize(pooled)
    similarity = embeddings @ embeddings.T
    labels = (SUBJECTS[:, None] == SUBJECTS).double()
    loss = (similarity - labels).square().mean()
    (gradient,) = torch.autograd.grad(loss, table)
    rows = tokens[seen].unique()
    assert gradient.norm() == gradient[rows].norm(), "a token that does not occur has a gradient"

    tensors = dict(tokens=tokens, lengths=lengths, hidden_states=hidden, attention=attention, pooled=pooled,
                   embeddings=embeddings, similarity=similarity, labels=labels, loss=loss, gradient_rows=rows,
                   gradient=gradient[rows])
    metadata = {"torch": torch.__version__, "heads": str(config["num_attention_heads"]),
                "norm_eps": str(config["layer_norm_eps"])}
    for i, text in enumerate(SENTENCES):
        metadata[f"sentence.{i}"] = text
        metadata[f"tokens.{i}"] = " ".join(pieces[i])
    save_file({name: x.detach().contiguous() for name, x in tensors.items()}, out + ".partial", metadata)
    os.chmod(out + ".partial", 0o644)
    os.replace(out + ".partial", out)  # what has the name of the file is complete


main()
