#include <chrono>
#include <thread>

#include "tests/support/pseudo_terminal.h"
#include "tests/support/test_data.h"
#include "tests/tools/chat_fixture.h"

namespace minfer::test {
namespace {

using nlohmann::json;

constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";

// What a person sees and types.
class ChatTerminal : public MinferChat {
 protected:
  std::unique_ptr<PseudoTerminal> start(const std::vector<std::string>& args = {"-n", "8"}) const {
    auto terminal = std::make_unique<PseudoTerminal>(
        command(chat_args(args)),
        std::map<std::string, std::string>{{"XDG_CACHE_HOME", path("cache")},
                                           {"XDG_STATE_HOME", path("state")},
                                           {"HOME", dir_.path()}});
    terminal->wait_for("/help lists the commands");
    terminal->wait_for("> ");
    return terminal;
  }
  // The messages of the user's so far.
  std::vector<std::string> said(PseudoTerminal& terminal) const {
    terminal.type("/save " + path("said.json") + "\r");
    terminal.wait_for("saved ");
    terminal.wait_for("> ");
    std::vector<std::string> texts;
    for (const json& message : saved("said.json")) {
      if (message["role"] == "user") texts.push_back(message["content"]);
    }
    return texts;
  }
  void say(PseudoTerminal& terminal, const std::string& keys) const {
    terminal.type(keys + "\r");
    terminal.wait_for("\r\n");
    terminal.wait_for("> ");
  }
};

TEST_F(ChatTerminal, AnswersAndLeaves) {
  const auto terminal = start();
  terminal->type("one\r");
  terminal->wait_for("one\r\n");
  const std::string answer = terminal->wait_for("> ");
  EXPECT_EQ(answer.find_first_not_of("abcde"), 8u) << answer;
  say(*terminal, "");
  terminal->type("/stat\r");
  terminal->wait_for("did you mean /stats?");
  terminal->wait_for("> ");
  terminal->type("/help\r");
  terminal->wait_for("/regenerate");
  terminal->wait_for("> ");
  EXPECT_EQ(said(*terminal), std::vector<std::string>{"one"});
  terminal->type("/exit\r");
  EXPECT_EQ(terminal->exit_code(), 0);
  const auto other = start();
  other->type(kCtrlD);
  EXPECT_EQ(other->exit_code(), 0);
  EXPECT_TRUE(other->is_cooked());
}

TEST_F(ChatTerminal, CtrlCEndsTheAnswerAndNotTheProgram) {
  const std::string only_a = "--logit-bias=" + std::to_string(kFirstByte + 'a') + "=200";
  const auto terminal = start({"-n", "-1", "--ignore-eos", "-c", "40000", only_a});
  for (int turn = 0; turn < 2; ++turn) {
    terminal->type("one\r");
    terminal->wait_for("one\r\n");
    for (int i = 0; i < 20; ++i) terminal->wait_for("a");  // it streams, and would go on
    terminal->type(kCtrlC);
    terminal->wait_for("\r\n");
    terminal->wait_for("> ");
  }
  terminal->type("/stats\r");
  terminal->wait_for("stop interrupted");
  EXPECT_EQ(said(*terminal).size(), 2u);
}

TEST_F(ChatTerminal, CtrlCEndsAPrefill) {
  const std::string long_text(39000, 'x');
  const std::string file =
      dir_.write("long.json", json::array({{{"role", "user"}, {"content", long_text}}}).dump());
  const auto terminal = start({"-n", "8", "-c", "40000", "-t", "1"});
  terminal->type("/load " + file + "\r");
  terminal->wait_for("loaded 1 messages");
  terminal->wait_for("> ");
  terminal->type("/regenerate\r");
  terminal->wait_for("/regenerate\r\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  terminal->type(kCtrlC);
  const auto before = std::chrono::steady_clock::now();
  terminal->wait_for("interrupted before the answer began");
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
  terminal->wait_for("> ");
  EXPECT_EQ(said(*terminal).size(), 1u);
  terminal->type("/reset\r");
  terminal->wait_for("> ");
  say(*terminal, "one");
  EXPECT_EQ(said(*terminal), std::vector<std::string>{"one"});
}

TEST_F(ChatTerminal, CtrlCAtThePromptDropsTheLineAndTheSecondOneLeaves) {
  const auto terminal = start();
  terminal->type(std::string("not this") + kCtrlC);
  terminal->wait_for("leaves");
  terminal->wait_for("> ");
  say(*terminal, "one");
  EXPECT_EQ(said(*terminal), std::vector<std::string>{"one"});
  terminal->type(kCtrlC);
  terminal->wait_for("leaves");
  terminal->wait_for("> ");
  terminal->type(kCtrlC);
  EXPECT_EQ(terminal->exit_code(), 130);
  EXPECT_TRUE(terminal->is_cooked());
  const auto ended = start();
  ended->send(SIGTERM);
  EXPECT_EQ(ended->exit_code(), 143);
  EXPECT_TRUE(ended->is_cooked());
}

TEST_F(ChatTerminal, LinesAreEdited) {
  const auto terminal = start({"-n", "2"});
  say(*terminal, "helo\x1b[Dl");                          // left
  say(*terminal, "wxrld\x01\x1b[C\x04o");                 // to the beginning, right, delete
  say(*terminal, "tw\xc3\xb6\xf0\x9f\x98\x80\x7f\x7fo");  // two characters of several bytes go
  say(*terminal, "a\tb");
  EXPECT_EQ(said(*terminal), (std::vector<std::string>{"hello", "world", "two", "a\tb"}));
}

TEST_F(ChatTerminal, LinesAreRemembered) {
  {
    const auto terminal = start({"-n", "2"});
    say(*terminal, "first \\ \xc3\xa9");
    say(*terminal, "second");
    say(*terminal, "\x1b[A\x1b[A");  // up, twice
    EXPECT_EQ(said(*terminal),
              (std::vector<std::string>{"first \\ \xc3\xa9", "second", "first \\ \xc3\xa9"}));
    terminal->type(kCtrlD);
    EXPECT_EQ(terminal->exit_code(), 0);
  }
  const auto terminal = start({"-n", "2"});
  say(*terminal, "\x1b[A\x1b[A\x1b[A");  // past /save and "first"
  EXPECT_EQ(said(*terminal), std::vector<std::string>{"second"});
  const auto permissions = std::filesystem::status(path("state/minfer/history")).permissions();
  EXPECT_EQ(permissions, std::filesystem::perms(0600));
}

TEST_F(ChatTerminal, ThereIsAChatWithoutAPlaceForTheHistory) {
  dir_.write("state", "a file");
  const auto terminal = start({"-n", "2"});
  say(*terminal, "one");
  EXPECT_EQ(said(*terminal), std::vector<std::string>{"one"});
}

TEST_F(ChatTerminal, MessagesOfSeveralLines) {
  const auto terminal = start({"-n", "2"});
  terminal->type("one\\\r");
  terminal->wait_for(". ");
  say(*terminal, "two");
  terminal->type("\"\"\"\r");
  terminal->wait_for(". ");
  terminal->type("three\r");
  terminal->wait_for(". ");
  terminal->type(kCtrlC);  // all of it is dropped
  terminal->wait_for("> ");
  EXPECT_EQ(said(*terminal), std::vector<std::string>{"one\ntwo"});
}

}  // namespace
}  // namespace minfer::test
