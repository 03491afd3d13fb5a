#include "cli/output_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace seer {
namespace {

namespace fs = std::filesystem;

Error failed(std::string_view what, const std::string& path, int error) {
  return fail(error == ENOENT ? Code::kNotFound : Code::kIo, "cannot ", what, " ", path, ": ", std::strerror(error));
}

/// Locks a partial file for this writer: two writers of one path would mix their bytes.
Status take(int fd, const std::string& partial) {
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0)
    return fail(Code::kUnavailable, "cannot write ", partial, ": it is being written already");
  struct stat opened {}, named {};
  const bool renamed = ::fstat(fd, &opened) != 0 || ::stat(partial.c_str(), &named) != 0 || opened.st_ino != named.st_ino;
  if (renamed)  // by its writer, between our open and our lock: it is somebody's finished file
    return fail(Code::kUnavailable, "cannot write ", partial, ": it was being written until now");
  return {};
}

/// Writes all of `text`, or says which errno stopped it.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return errno;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

}  // namespace

Status check_two_files(const char* out_flag, const std::string& out, const char* in_flag, const std::string& in) {
  std::error_code ignored;  // if this fails, opening the path will fail with a reason
  if (!fs::is_regular_file(out, ignored) || !fs::equivalent(out, in, ignored)) return {};
  return fail(Code::kInvalidArgument, out_flag, " and ", in_flag, " both name ", out, ": expected two files");
}

Result<OutputWriter> OutputWriter::open(const std::string& path) {
  if (path == "-") {
    const int fd = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return failed("write", "stdout", errno);
    return OutputWriter("stdout", "", fd);
  }
  std::error_code ignored;  // if this fails, opening the path below will fail with a reason
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) return fail(Code::kIo, "cannot write ", path, ": it is a folder");
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return failed("write", path, errno);
    return OutputWriter(path, "", fd);
  }
  // Follow a link now, so that the rename replaces its target and not the link.
  const bool is_link = fs::exists(status) && fs::is_symlink(fs::symlink_status(path, ignored));
  const std::string target = is_link ? fs::canonical(path, ignored).string() : path;
  const std::string partial = target + ".partial";
  const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return failed("write", partial, errno);
  if (const Status taken = take(fd, partial); !taken.ok()) {
    ::close(fd);
    return taken.error();
  }
  return OutputWriter(target, partial, fd);
}

OutputWriter::OutputWriter(std::string path, std::string partial, int fd)
    : path_(std::move(path)), partial_(std::move(partial)), fd_(fd) {}

OutputWriter::OutputWriter(OutputWriter&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::move(other.partial_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_) {}

OutputWriter& OutputWriter::operator=(OutputWriter&& other) noexcept {
  if (this == &other) return *this;
  close();
  path_ = std::move(other.path_);
  partial_ = std::move(other.partial_);
  fd_ = std::exchange(other.fd_, -1);
  bytes_ = other.bytes_;
  return *this;
}

OutputWriter::~OutputWriter() { close(); }

void OutputWriter::close() {
  if (fd_ < 0) return;
  struct stat file {};  // not empty: it holds lines, of this run or of an earlier one
  if (!partial_.empty() && ::fstat(fd_, &file) == 0 && file.st_size == 0) ::unlink(partial_.c_str());
  ::close(fd_);
  fd_ = -1;
}

Status OutputWriter::append(std::string_view text) {
  SEER_CHECK(fd_ >= 0, path_);
  SEER_CHECK(text.ends_with('\n'), path_);
  SEER_RETURN_IF_ERROR(drop_old_lines());
  if (const int error = write_all(fd_, text); error != 0) {
    // Remove the written part of the line. A device or pipe cannot do that, but its reader is gone anyway.
    if (!partial_.empty() && (::ftruncate(fd_, bytes_) != 0 || ::lseek(fd_, bytes_, SEEK_SET) != bytes_))
      return failed("shorten", partial_, errno);
    return failed("write", partial_.empty() ? path_ : partial_, error);
  }
  bytes_ += static_cast<int64_t>(text.size());
  return {};
}

Status OutputWriter::drop_old_lines() {
  if (bytes_ > 0 || partial_.empty() || ::ftruncate(fd_, 0) == 0) return {};
  return failed("write", partial_, errno);
}

std::string OutputWriter::left_text() const {
  if (partial_.empty()) return cat("they were written to ", path_);
  const bool had_before = fs::exists(path_);
  if (bytes_ == 0) return had_before ? cat(path_, " is as it was") : cat("there is no ", path_);
  return cat("they are in ", partial_, had_before ? cat(", and ", path_, " is as it was") : cat(", and there is no ", path_));
}

Status OutputWriter::finish() {
  SEER_CHECK(fd_ >= 0, path_);
  SEER_RETURN_IF_ERROR(drop_old_lines());
  const bool synced = partial_.empty() || ::fsync(fd_) == 0;
  const int sync_error = errno;
  ::close(fd_);
  fd_ = -1;
  if (!synced) return failed("write", partial_, sync_error);
  if (!partial_.empty() && std::rename(partial_.c_str(), path_.c_str()) != 0) return failed("write", path_, errno);
  return {};
}

}  // namespace seer
