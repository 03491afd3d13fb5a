// How many files and connections this process may have open.
#pragma once

namespace seer {

/// Raises the limit to 65 536, or as far as it may be raised. A shell gives 1024. That is too few for the clients of a server. And
/// strangers can use them up at a port for KV: UCX takes every connection, and when no file is left it closes the port for good.
void raise_file_limit();

}  // namespace seer
