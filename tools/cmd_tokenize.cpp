#include <nlohmann/json.hpp>

#include "models/tokenizer.h"
#include "tools/commands.h"
#include "tools/id_tokenizer.h"
#include "tools/json_text.h"
#include "tools/model_path.h"
#include "tools/text_input.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

struct TokenizeOptions {
  std::string model_path, tokenizer_path;
  TextOptions text;
  std::optional<std::string> decode;  // ids with blanks or commas between them
  bool no_bos = false, special = false;
  bool ids = false, count = false;
};

std::string joined(const std::vector<TokenId>& ids) {
  std::string line;
  for (TokenId id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  return line;
}

void print_decoded(const Tokenizer& tokenizer, const TokenizeOptions& options, Context& context) {
  const std::string text = tokenizer.decode(
      parse_token_ids("--decode", *options.decode, tokenizer.n_tokens()), options.special);
  if (context.common.json) return context.out.line(pretty(Json::object({{"text", text}})));
  context.out.line(text);
}

void print_tokens(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                  const TokenizeOptions& options, Context& context) {
  if (context.common.json) {
    Json pieces = Json::array();
    for (TokenId id : ids) pieces.push_back(tokenizer.piece(id));
    return context.out.line(
        pretty(Json::object({{"count", ids.size()}, {"ids", ids}, {"pieces", pieces}})));
  }
  if (options.count) return context.out.line(std::to_string(ids.size()));
  if (options.ids) return context.out.line(joined(ids));
  std::string lines;
  for (TokenId id : ids) {
    lines += cat(id, '\t', shortened(tokenizer.piece(id), std::string::npos), '\n');
  }
  context.out.text(lines);
}

void run_tokenize(const TokenizeOptions& options, Context& context) {
  MINFER_REQUIRE(Usage, int(options.ids) + int(options.count) + int(context.common.json) <= 1,
                 "--ids, --count and --json exclude each other");
  const bool has_text = options.text.positional || options.text.option || options.text.file;
  MINFER_REQUIRE(Usage, !(options.decode && has_text), "--decode takes ids and no other text");
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(
      options.tokenizer_path.empty() ? find_model(options.model_path) : options.tokenizer_path);
  if (options.decode) return print_decoded(*tokenizer, options, context);

  const std::optional<std::string> text = read_text_options(options.text);
  MINFER_REQUIRE(Usage, text, "no text: give it as an argument, with -f FILE or by a pipe");
  const std::vector<TokenId> ids =
      tokenizer->encode(*text, {.add_bos = !options.no_bos, .parse_special = options.special});
  print_tokens(*tokenizer, ids, options, context);
}

}  // namespace

void add_tokenize_command(CommandNode& root, Context& context) {
  auto options = std::make_shared<TokenizeOptions>();
  CommandNode& command =
      root.add_command("tokenize", "Text to token ids, and back",
                       "  minfer tokenize -m smollm2 \"Hello world\"\n"
                       "  minfer tokenize -m tokenizer.model -f book.txt --count\n"
                       "  minfer tokenize -m smollm2 --decode \"19556 905\"",
                       [options, &context] { run_tokenize(*options, context); });
  command.add_text("-m,--model", options->model_path, "MODEL",
                   "Directory, .gguf (vocabulary-only too), tokenizer file, or smollm2");
  command.add_text("--tokenizer", options->tokenizer_path, "FILE", "Tokenizer of a llama2.c model");
  command.add_text("TEXT", options->text.positional, "TEXT", "Text to tokenize");
  command.add_text("-p,--prompt", options->text.option, "TEXT", "Text to tokenize");
  command.add_text("-f,--file", options->text.file, "FILE", "Read the text from FILE, - for stdin");
  command.add_flag("--ids", options->ids, "Print the ids on one line");
  command.add_flag("--count", options->count, "Print the number of tokens");
  command.add_text("--decode", options->decode, "IDS", "Print the text of these ids");
  command.add_flag("--no-bos", options->no_bos, "No BOS token in front");
  command.add_flag("--special", options->special, "Names of control tokens are those tokens",
                   Show::More);
}

}  // namespace minfer
