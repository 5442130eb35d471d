#include <nlohmann/json.hpp>

#include "models/tokenizer/tokenizer.h"
#include "tools/chat_options.h"
#include "tools/commands.h"
#include "tools/id_tokenizer.h"
#include "tools/json_text.h"
#include "tools/log.h"
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
  ChatCommandOptions conversation;
  bool render = false;  // the text of the conversation instead of its tokens
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

void print_conversation(const Tokenizer& tokenizer, const TokenizeOptions& options,
                        Context& context) {
  const ChatTemplate chosen = choose_chat_template(options.conversation.chat_template, tokenizer);
  const std::string messages = read_text(*options.conversation.messages);
  const ChatOptions chat_options = options.conversation.chat_options(options.special);
  if (options.render) {
    std::string text;
    for (const TextPart& part : chosen.render(tokenizer, messages, chat_options)) text += part.text;
    return context.out.text(text);
  }
  ChatPrompt prompt = make_chat_prompt(tokenizer, chosen, messages, chat_options);
  const bool bos_first = !prompt.tokens.empty() && prompt.tokens.front() == tokenizer.bos();
  if (options.no_bos && bos_first) prompt.tokens.erase(prompt.tokens.begin());
  print_tokens(tokenizer, prompt.tokens, options, context);
}

void check_conversation(const TokenizeOptions& options, bool has_text) {
  const ChatCommandOptions& conversation = options.conversation;
  conversation.check();
  if (conversation.messages) {
    MINFER_REQUIRE(Usage, !has_text && !options.decode, "--messages takes no other text");
    return;
  }
  const bool chat_option =
      options.render || !conversation.chat_template.empty() || !conversation.variables.empty();
  MINFER_REQUIRE(Usage, !chat_option,
                 "--render, --chat-template and --template-var go with --messages");
}

void run_tokenize(const TokenizeOptions& options, Context& context) {
  const int forms = int(options.ids) + int(options.count) + int(context.common.json);
  MINFER_REQUIRE(Usage, forms + int(options.render) <= 1,
                 "--ids, --count, --json and --render exclude each other");
  const bool has_text = options.text.positional || options.text.option || options.text.file;
  MINFER_REQUIRE(Usage, !(options.decode && has_text), "--decode takes ids and no other text");
  check_conversation(options, has_text);
  const std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(
      options.tokenizer_path.empty() ? find_model(options.model_path) : options.tokenizer_path);
  for (const std::string& warning : tokenizer->warnings()) log_warning(warning);
  for (const std::string& note : tokenizer->notes()) log_debug(note);
  if (options.decode) return print_decoded(*tokenizer, options, context);
  if (options.conversation.messages) return print_conversation(*tokenizer, options, context);

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
                       "  minfer tokenize -m smollm2 --decode \"19556 905\"\n"
                       "  minfer tokenize -m smollm2 --messages chat.json --render",
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
  options->conversation.add_to(command);
  command.add_flag("--render", options->render,
                   "Print the text of the conversation as the model gets it");
  command.add_flag("--no-bos", options->no_bos, "No BOS token in front");
  command.add_flag("--special", options->special, "Names of control tokens are those tokens",
                   Show::More);
  command.exclude({"--ids"}, {"--count", "--json", "--render"});
  command.exclude({"--count"}, {"--json", "--render"});
  command.exclude({"--json"}, {"--render"});
  command.exclude({"--decode", "--messages"}, {"TEXT", "--prompt", "--file"});
  command.exclude({"--decode"}, {"--messages"});
  command.exclude({"TEXT"}, {"--prompt", "--file"});
  command.exclude({"--prompt"}, {"--file"});
  command.need({"--render", "--chat-template", "--template-var"}, {"--messages"});
}

}  // namespace minfer
