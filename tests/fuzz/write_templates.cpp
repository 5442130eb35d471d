#include <string>

#include "tests/fuzz/chat_template_targets.h"

namespace minfer::test {
namespace {

// Writes templates by Jinja's grammar, some of them then broken.
class Writer {
 public:
  explicit Writer(Random& random) : random_(random) {}

  std::string next() {
    std::string out = body(3);
    if (below(4) == 0) out = broken(std::move(out));
    return out;
  }

 private:
  size_t below(size_t n) { return test::below(random_, n); }

  template <size_t n>
  std::string one_of(const char* const (&list)[n]) {
    return list[below(n)];
  }

  std::string name() {
    return one_of({"s", "u", "l", "d", "i", "f", "n", "x", "y", "ns", "m", "loop", "messages",
                   "caller", "varargs", "kwargs", "missing", "bos_token"});
  }

  std::string literal() {
    switch (below(9)) {
      case 0:
        return one_of({"0", "1", "-1", "2", "3", "7", "100", "1_0", "9223372036854775807"});
      case 1:
        return one_of({"0.0", "1.5", "1e3", "-2.5", "1e308"});
      case 2:
        return one_of({"true", "false", "none", "True", "None"});
      case 3:
        return "[" + expression(1) + ", " + expression(1) + "]";
      case 4:
        return "(" + expression(1) + ", " + expression(1) + ")";
      case 5:
        return "{'a': " + expression(1) + ", " + literal_text() + ": " + expression(1) + "}";
      case 6:
        return one_of({"[]", "{}", "()", "''"});
      default:
        return literal_text();
    }
  }

  std::string literal_text() {
    return one_of({"'a'", "\"b\"", "'ab, c'", "' x\\n'", "'<s>'", "'\\u00e9'", "'content'",
                   "'\xe4\xb8\x96'", "'%s'", "'a.b'", "'0'", "'role'", "'items'", "'<\\'>'"});
  }

  std::string arguments() {
    std::string out = "(";
    const size_t n = below(3);
    for (size_t i = 0; i < n; ++i) out += (i > 0 ? ", " : "") + expression(1);
    if (below(5) == 0) {
      out += (n > 0 ? ", " : "") + one_of({"attribute='role'", "indent=2", "b=1", "reverse=true",
                                           "*l", "**d", "default='z'", "caller=1"});
    }
    return out + ")";
  }

  std::string filter() {
    return one_of({"length",
                   "trim",
                   "upper",
                   "lower",
                   "tojson",
                   "list",
                   "first",
                   "last",
                   "join",
                   "join('-')",
                   "default('x')",
                   "default('x', true)",
                   "map('upper')",
                   "map(attribute='role')",
                   "select",
                   "reject('none')",
                   "selectattr('role')",
                   "rejectattr('a', 'eq', 1)",
                   "items",
                   "sort",
                   "unique",
                   "reverse",
                   "string",
                   "int",
                   "float",
                   "abs",
                   "round",
                   "sum",
                   "min",
                   "max",
                   "dictsort",
                   "batch(2)",
                   "slice(2, 0)",
                   "indent",
                   "indent(2, true, true)",
                   "replace('a', 'bb')",
                   "replace('', 'x')",
                   "title",
                   "capitalize",
                   "safe",
                   "escape",
                   "center(9)",
                   "truncate(4)",
                   "format(1, 'a')",
                   "tojson(indent=1)",
                   "trim('a ')",
                   "map('map', 'upper')",
                   "select('in', l)",
                   "sort(attribute='a,b')",
                   "nope"});
  }

  std::string method() {
    return one_of({"upper",  "lower",      "strip",   "lstrip",     "rstrip",     "split",
                   "rsplit", "splitlines", "replace", "startswith", "endswith",   "join",
                   "find",   "rfind",      "index",   "count",      "title",      "capitalize",
                   "items",  "keys",       "values",  "get",        "copy",       "append",
                   "pop",    "isdigit",    "islower", "partition",  "rpartition", "removeprefix",
                   "cycle",  "changed",    "format",  "nope"});
  }

  std::string test() {
    return one_of({"defined",  "none",          "string",   "mapping",   "iterable",
                   "sequence", "number",        "odd",      "even",      "eq 1",
                   "in l",     "divisibleby 2", "callable", "lower",     "true",
                   "nope",     "sameas none",   "gt 'a'",   "undefined", "boolean"});
  }

  std::string expression(int depth) {
    if (depth <= 0 || below(6) == 0) return below(2) == 0 ? name() : literal();
    const auto inner = [&] { return expression(depth - 1); };
    switch (below(15)) {
      case 0:
      case 1:
        return inner() + " " + one_of({"+", "-", "*", "/", "//", "%", "~", "~", "+", "and", "or"}) +
               " " + inner();
      case 2:
        return inner() + " " + one_of({"==", "!=", "<", "<=", ">", ">=", "in", "not in"}) + " " +
               inner();
      case 3:
      case 4:
        return "(" + inner() + ")|" + filter();
      case 5:
        return "(" + inner() + ")." + method() + arguments();
      case 6:
        return inner() + "." +
               one_of({"role", "content", "a", "items", "index", "last", "previtem", "nextitem",
                       "length", "revindex", "x"});
      case 7:
        return inner() + "[" + inner() + "]";
      case 8:
        return inner() + "[" + (below(2) == 0 ? "" : inner()) + ":" +
               (below(2) == 0 ? "" : inner()) + one_of({"", "", ":", ":-1", ":2", ":0"}) + "]";
      case 9:
        return inner() + " is " + (below(3) == 0 ? "not " : "") + test();
      case 10:
        return "(" + inner() + " if " + inner() + (below(3) == 0 ? "" : " else " + inner()) + ")";
      case 11:
        return one_of({"not ", "-", "+", "- -"}) + inner();
      case 12:
        return one_of({"range", "dict", "namespace", "m", "caller", "x", "loop.cycle",
                       "loop.changed", "raise_exception", "strftime_now", "range"}) +
               arguments();
      case 13:
        return inner() + " ** " + one_of({"2", "0.5", "-1", "100"});
      default:
        return "(" + inner() + ")";
    }
  }

  std::string open() { return one_of({"{%", "{%", "{%-", "{%+", "{% "}); }
  std::string close() { return one_of({"%}", "%}", "-%}", "+%}", " %}\n"}); }
  std::string tag(const std::string& inside) { return open() + " " + inside + " " + close(); }

  std::string target() {
    return one_of({"x", "y", "x, y", "ns.a", "(x, y)", "l", "s", "x, (y, z)", "ns.a, ns.b"});
  }

  std::string statement(int depth) {
    switch (below(14)) {
      case 0:
      case 1:
        return one_of({"{{", "{{-", "{{ "}) + " " + expression(3) + " " + one_of({"}}", "-}}"});
      case 2:
        return tag("if " + expression(2)) + body(depth - 1) +
               (below(2) == 0 ? tag("elif " + expression(1)) + body(depth - 1) : "") +
               (below(2) == 0 ? tag("else") + body(depth - 1) : "") + tag("endif");
      case 3:
      case 4:
        return tag("for " + one_of({"x", "y", "x, y", "(x, y)", "m"}) + " in " + expression(2) +
                   (below(3) == 0 ? " if " + expression(2) : "")) +
               body(depth - 1) + (below(3) == 0 ? tag("else") + body(depth - 1) : "") +
               tag("endfor");
      case 5:
      case 6:
        return tag("set " + target() + " = " + expression(3));
      case 7:
        return tag("set x" + std::string(below(2) == 0 ? "" : "|" + filter())) + body(depth - 1) +
               tag("endset");
      case 8:
        return tag("macro m(" + one_of({"", "x", "x, y=1", "x=y, y=2", "caller=none", "x=m"}) +
                   ")") +
               body(depth - 1) + tag("endmacro");
      case 9:
        return tag("call" + one_of({"", "(x)", "(x, y=2)"}) + " m" + arguments()) +
               body(depth - 1) + tag("endcall");
      case 10:
        return tag("filter " + filter()) + body(depth - 1) + tag("endfilter");
      case 11:
        return tag("generation") + body(depth - 1) + tag("endgeneration");
      case 12:
        return tag(one_of({"break", "continue", "set ns = namespace(a=1, b=[])", "nope"}));
      default:
        return one_of({"{# c #}", "{#- c -#}\n", "{% raw %}{{ x }}{% endraw %}",
                       "{% raw -%} a\n"
                       "{%- endraw %}"});
    }
  }

  std::string body(int depth) {
    std::string out;
    if (depth <= 0) return one_of({"a", " ", "\n", "{{ x }}", "", "<s>", "{{ loop.index }}"});
    for (size_t n = 1 + below(4); n > 0; --n)
      out += one_of({"", "", " ", "\n", "text\n  ", "\xc3\xa9", "\xe3\x80\x80"}) + statement(depth);
    return out;
  }

  std::string broken(std::string text) {
    for (size_t n = 1 + below(3); n > 0 && !text.empty(); --n) {
      const size_t at = below(text.size());
      switch (below(5)) {
        case 0:
          text[at] = static_cast<char>(random_());
          break;
        case 1:
          text.resize(at);
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), below(20)));
          break;
        case 3:
          text.erase(at, below(10));
          break;
        default:
          text.insert(at, one_of({"{{", "}}", "{%", "%}", "{#", "#}", "(", ")", "[", "]", "'", "\\",
                                  "|", ".", ",", "-", "\r\n"}));
      }
    }
    return text;
  }

  Random& random_;
};

}  // namespace

std::string random_template(Random& random) { return Writer(random).next(); }

}  // namespace minfer::test
