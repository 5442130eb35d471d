#include "kernels/base/cgroup.h"

#include <fstream>
#include <optional>
#include <sstream>

namespace minfer {
namespace {

// "cpu" in "cpu,cpuacct".
bool lists(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const size_t comma = names.find(',');
    if (names.substr(0, comma) == name) return true;
    names.remove_prefix(comma == std::string_view::npos ? names.size() : comma + 1);
  }
  return false;
}

// mountinfo writes blank, tab, newline and backslash as three octal digits: "\040".
std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = text.substr(i + 1, 3);
    if (text[i] == '\\' && digits.size() == 3 &&
        digits.find_first_not_of("01234567") == std::string_view::npos) {
      out += char((digits[0] - '0') * 64 + (digits[1] - '0') * 8 + (digits[2] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

struct Mount {
  std::string group;  // which group of the hierarchy is mounted
  std::string dir;    // where
};

// A line is "ID PARENT DEVICE ROOT DIR OPTIONS [TAGS] - TYPE SOURCE SUPER_OPTIONS"; version 1 has
// its controllers among the latter.
std::vector<Mount> mounts_of(std::string_view controller, bool version2, const std::string& root) {
  std::vector<Mount> mounts;
  std::ifstream in(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream left(line.substr(0, dash)), right(line.substr(dash + 3));
    std::string id, parent, device, group, dir, type, source, options;
    if (!(left >> id >> parent >> device >> group >> dir) || !(right >> type >> source)) continue;
    right >> options;
    const bool fits = version2 ? type == "cgroup2" : type == "cgroup" && lists(options, controller);
    if (fits) mounts.push_back({unescaped(group), unescaped(dir)});
  }
  return mounts;
}

// `group` below `top`, "" for `top` itself; none where it is not there: a container may be told the
// host's name of its group, or one above its own root ("/..").
std::optional<std::string> below(const std::string& group, const std::string& top) {
  if (group.find("/..") != std::string::npos) return std::nullopt;
  const std::string prefix = top == "/" ? "" : top;
  if (!group.starts_with(prefix)) return std::nullopt;
  const std::string rest = group.substr(prefix.size());
  if (!rest.empty() && rest.front() != '/') return std::nullopt;
  return rest == "/" ? "" : rest;
}

}  // namespace

// A line of /proc/self/cgroup is "ID:CONTROLLERS:GROUP", of version 2 without controllers.
std::vector<Cgroup> cgroups_of(std::string_view controller, const std::string& root) {
  std::vector<Cgroup> groups;
  std::ifstream in(root + "/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool version2 = controllers.empty();
    if (!version2 && !lists(controllers, controller)) continue;
    for (const Mount& mount : mounts_of(controller, version2, root)) {
      std::string rest = below(line.substr(second + 1), mount.group).value_or("");
      for (; !rest.empty(); rest.resize(rest.rfind('/'))) {
        groups.push_back({root + mount.dir + rest, version2});
      }
      groups.push_back({root + mount.dir, version2});
    }
  }
  return groups;
}

}  // namespace minfer
