// Certificates made by openssl in a scratch folder: of two CAs, and an expired one.
#pragma once
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>

#include "cli/scratch.h"
#include "cli/cluster_gate.h"

namespace seer {

struct Certificates {
  Certificates() {
    make_ca("ca");
    make_ca("other-ca");
    sign("good", "ca", "-days 2");
    sign("other", "other-ca", "-days 2");
    sign("expired", "ca", "-days -1");
    sign("of-another-host", "ca", "-days 2", "DNS:elsewhere.example");
  }
  std::string path(const std::string& name) const { return folder.path(name); }
  TlsFiles files(const std::string& certificate, const std::string& key, const std::string& ca) const {
    return {path(certificate + ".pem"), path(key + ".key"), path(ca + ".pem")};
  }
  void run(const std::string& arguments) const {
    const std::string command = "openssl " + arguments + " >" + folder.path("log") + " 2>&1";
    REQUIRE_MESSAGE(std::system(command.c_str()) == 0, command);
  }
  void make_ca(const std::string& name) const {
    run(cat("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=", name, " -keyout ", path(name + ".key"), " -out ",
            path(name + ".pem")));
  }
  /// `hosts`: that a client may reach its owner at.
  void sign(const std::string& name, const std::string& ca, const std::string& days, const std::string& hosts = "IP:127.0.0.1,DNS:localhost") const {
    run(cat("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=", name, " -addext subjectAltName=", hosts, " -keyout ", path(name + ".key"),
            " -out ", path("csr")));
    run(cat("x509 -req -in ", path("csr"), " -CA ", path(ca + ".pem"), " -CAkey ", path(ca + ".key"), " -CAcreateserial -copy_extensions copy ", days,
            " -out ", path(name + ".pem")));
  }
  ScratchFolder folder;
};

}  // namespace seer
