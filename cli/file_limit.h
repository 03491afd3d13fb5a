// How many files and connections this process may have open.
#pragma once
#include <cstddef>

namespace seer {

/// Raises the limit to 65 536, or as far as it may be raised. 1024, a shell's usual limit, is too few for a server's clients. And UCX
/// accepts every connection to its port, so that strangers could use up all files; UCX then closes the port for good.
void raise_file_limit();

/// Caps the number of clients' connections, so that files are left for journals, weights, machines and servers.
size_t connections_that_fit(size_t asked);

}  // namespace seer
