// The yardstick for engines: one pass over the tasks in topological order, each taking the
// latest of its release, its lane's progress and its causes. Same arrays as daydream's Plan.
#include <algorithm>
#include <cstdint>
#include <cstring>

extern "C" void pull(int64_t tasks, int64_t lanes, const int32_t *lane, const int64_t *duration,
                     const int64_t *gap, const int64_t *release, const int64_t *edge_ptr,
                     const int32_t *edge_src, const int64_t *latency, const uint8_t *from_start,
                     int64_t *progress, int64_t *start, int64_t *end) {
    std::memset(progress, 0, lanes * sizeof(int64_t));
    for (int64_t i = 0; i < tasks; ++i) {
        int64_t at = std::max(release[i], progress[lane[i]]);
        for (int64_t e = edge_ptr[i]; e < edge_ptr[i + 1]; ++e) {
            const int32_t src = edge_src[e];
            at = std::max(at, (from_start[e] ? start[src] : end[src]) + latency[e]);
        }
        start[i] = at;
        end[i] = at + duration[i];
        progress[lane[i]] = end[i] + gap[i];
    }
}
