// The TCP sockets of a process, for tests of what it listens at and of connections that it should not have.
#pragma once
#include <netinet/tcp.h>
#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace seer {

struct TcpSocket {
  std::string local, remote;  // as in /proc/net/tcp: "0100007F:1F90"
  int state = 0;              // TCP_ESTABLISHED, TCP_CLOSE_WAIT, TCP_LISTEN ...
};

inline std::vector<TcpSocket> tcp_sockets(pid_t process) {
  const std::string folder = "/proc/" + std::to_string(process);
  std::set<std::string> files;  // "socket:[123]"
  for (const auto& file : std::filesystem::directory_iterator(folder + "/fd")) {
    std::error_code closed;
    files.insert(std::filesystem::read_symlink(file, closed).string());
  }
  std::vector<TcpSocket> sockets;
  for (const char* const table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream lines(folder + table);
    std::string line;
    std::getline(lines, line);  // its head
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      TcpSocket socket;
      std::string number, queues, timer, retries, user, timeout, inode;
      fields >> number >> socket.local >> socket.remote >> std::hex >> socket.state;
      fields >> queues >> timer >> retries >> user >> timeout >> inode;
      if (files.contains("socket:[" + inode + "]")) sockets.push_back(socket);
    }
  }
  return sockets;
}

}  // namespace seer
