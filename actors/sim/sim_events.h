// SimEvents: the events of a simulated rollout, with the times of its SimWorld.
#pragma once
#include <map>
#include <set>
#include <vector>

#include "actors/fleet.h"
#include "actors/sim/sim_world.h"
#include "protocols/hash.h"

namespace seer {

struct SimEvents {
  std::vector<Response> responses;   // only with keep_responses
  std::vector<double> completions_s; // when each response came
  std::vector<double> starts_s;      // of the same requests
  std::vector<RequestId> completed;  // their names
  std::vector<RolloutProgress> progress;
  std::vector<RolloutSummary> summaries;
  bool are_streams = false;          // all groups are (GroupSpec::streams)
  std::map<RequestId, std::vector<int32_t>> told;  // tokens of streams
  std::set<RequestId> untold;        // streams whose response had other tokens than those told before it
  uint64_t hash = 0;                 // of the responses' names and times

  bool over() const { return !summaries.empty(); }
};

/// Starts the actor that collects the events. Without `keep_responses` it notes only the times of responses: a large simulation
/// has no memory for their tokens. REQUIRES: `events` outlives the actors of the world.
inline RolloutEvents collect_events(SimWorld& world, SimEvents& events, bool keep_responses) {
  return world.spawn<ListenerActor>(RolloutListener{
      .response =
          [&world, &events, keep_responses](Response& r) {
            events.completions_s.push_back(static_cast<double>(world.now_ns()) / 1e9);
            events.starts_s.push_back(static_cast<double>(r.start_us) / 1e6);
            events.completed.push_back(r.request);
            events.hash = hash_pair(hash_pair(events.hash, static_cast<uint64_t>(world.now_ns())),
                                    hash_pair(r.request.group.index, r.request.sample));
            if (events.are_streams && events.told[r.request] != r.output.ids) events.untold.insert(r.request);
            if (keep_responses) events.responses.push_back(std::move(r));
          },
      .progress = [&events](const RolloutProgress& p) { events.progress.push_back(p); },
      .commits =
          [&events](const RolloutCommits& commits) {
            for (const CommittedTokens& part : commits.parts) {
              std::vector<int32_t>& told = events.told[part.request];
              if (part.first_index != std::ssize(told)) events.untold.insert(part.request);
              told.insert(told.end(), part.output.ids.begin(), part.output.ids.end());
            }
          },
      .summary = [&events](RolloutSummary& s) { events.summaries.push_back(std::move(s)); }});
}

}  // namespace seer
