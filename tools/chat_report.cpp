#include "tools/chat_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/json_text.h"
#include "tools/statistics.h"

namespace minfer {
namespace {

using Json = nlohmann::ordered_json;

double prefill_rate(const GenerateResult& result) {
  return per_second(double(result.evaluated_tokens()), result.prefill_seconds);
}

double decode_rate(const GenerateResult& result) {
  return per_second(double(result.decoded_tokens()), result.decode_seconds);
}

// All of a turn but what it says.
Json counts_json(const ChatTurn& turn) {
  const GenerateResult& result = turn.result;
  return {{"prompt_tokens", result.prompt_tokens},
          {"reused_tokens", result.reused_tokens},
          {"evaluated_tokens", result.evaluated_tokens()},
          {"generated_tokens", result.tokens.size()},
          {"drafted_tokens", result.drafted_tokens},
          {"accepted_tokens", result.accepted_tokens},
          {"stop_reason", stop_reason_name(result.stop_reason)},
          {"seed", turn.seed ? Json(*turn.seed) : Json()},
          {"timings",
           {{"prefill_s", result.prefill_seconds},
            {"prefill_tokens_per_s", prefill_rate(result)},
            {"first_token_s", result.first_token_seconds},
            {"decode_s", result.decode_seconds},
            {"decode_tokens_per_s", decode_rate(result)}}}};
}

}  // namespace

std::string stats_text(const Conversation& conversation, const std::vector<ChatTurn>& turns) {
  std::string text =
      fmt::format("messages   {}\ncontext    {} of {} tokens\n", conversation.messages().size(),
                  conversation.cached_tokens(), conversation.context_size());
  if (turns.empty()) return text;
  const GenerateResult& last = turns.back().result;
  const std::optional<uint64_t> seed = turns.back().seed;
  text +=
      fmt::format("last turn  {} tokens evaluated, {} reused, {} generated; stop {}{}\n",
                  last.evaluated_tokens(), last.reused_tokens, last.tokens.size(),
                  stop_reason_name(last.stop_reason), seed ? fmt::format("; seed {}", *seed) : "");
  text += fmt::format(
      "           {:.1f} tok/s evaluated, first token {:.0f} ms, {:.1f} tok/s "
      "generated\n",
      prefill_rate(last), last.first_token_seconds * 1e3, decode_rate(last));
  int64_t evaluated = 0, generated = 0;
  for (const ChatTurn& turn : turns) {
    evaluated += turn.result.evaluated_tokens();
    generated += std::ssize(turn.result.tokens);
  }
  return text + fmt::format("all turns  {}: {} tokens evaluated, {} generated\n", turns.size(),
                            evaluated, generated);
}

std::string turn_json_line(const ChatTurn& turn) {
  Json object = {{"done", true}};
  object.update(counts_json(turn));
  return compact(object);
}

std::string chat_json(const Conversation& conversation, const std::vector<ChatTurn>& turns,
                      const Model& model, const std::string& activations) {
  Json list = Json::array();
  for (const ChatTurn& turn : turns) {
    Json object = {{"text", turn.result.text}, {"tokens", turn.result.tokens}};
    object.update(counts_json(turn));
    list.push_back(std::move(object));
  }
  const Json object = {{"turns", std::move(list)},
                       {"messages", Json::parse(chat_messages_json(conversation.messages()))},
                       {"context_tokens", conversation.cached_tokens()},
                       {"context_size", conversation.context_size()},
                       {"model", model.description},
                       {"activations", activations},
                       {"load_s", model.load_seconds}};
  return pretty(object);
}

}  // namespace minfer
