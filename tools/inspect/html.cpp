#include <tapehead/inspect/html.h>

#include <ostream>

#include <tapehead/inspect/page/page.h>
#include <tapehead/inspect/page_data.h>

namespace tapehead {

void write_html(std::ostream& out, const TapeTable& table) {
  out << page::head << "<style>\n" << page::style << "</style>\n" << page::body;
  out << R"(<script type="application/json" id="tape">)" << page_data(table) << "</script>\n";
  out << R"(<script nonce="page">)"
      << "\n\"use strict\";\n(() => {\n";
  for (const std::string_view part : page::script) out << part;
  out << "})();\n</script>\n</body>\n</html>\n";
}

}  // namespace tapehead
