// Which unit comes next: units are numbered sequence by sequence, in a sequence by chunk of KV heads, then by key.
#pragma once

#include "arguments.cuh"

namespace santa {

struct Unit {
    int b, chunk, first_token, length; // b < 0: no more units
};

// Finds units by number, numbers ascending; used by a whole warp, 32 sequences at a time.
class Schedule {
  public:
    __device__ explicit Schedule(const Work& work) : work_(work) {}

    // Read the lengths; returns the units of all sequences together.
    __device__ int begin() {
        int sum = 0;
#pragma unroll 1
        for (int start = (work_.a.batch - 1) / 32 * 32; start >= 0; start -= 32) sum += load(start);
        before_ = 0;
        return sum;
    }

    // This lane's length as it is now, of the first 32 sequences, for `changed`. It may still be on its way.
    __device__ int length_now() const {
        const int b = threadIdx.x % 32;
        return b < work_.a.batch ? __ldcg(work_.a.lengths + b) : 0;
    }

    // Whether the lengths may be others than those that begin read.
    __device__ bool changed(int now) const {
        return work_.a.batch > 32 || __any_sync(~0u, clamp_length(now, work_.a.max_length) != length_);
    }

    __device__ Unit find(int number) {
        while (number >= before_ + all_) {
            before_ += all_;
            load(start_ + 32);
        }
        const int inside = number - before_;
        const int owner = __popc(__ballot_sync(~0u, upto_ <= inside));
        const int units = __shfl_sync(~0u, units_, owner), length = __shfl_sync(~0u, length_, owner);
        const int local = inside - __shfl_sync(~0u, upto_ - units_ * work_.p.chunks, owner);
        const int chunk = unsigned(local) / unsigned(units);
        return {start_ + owner, chunk, (local - chunk * units) * work_.p.unit_tokens, length};
    }

  private:
    __device__ int load(int start) {
        start_ = start;
        const int lane = threadIdx.x % 32, b = start + lane;
        length_ = b < work_.a.batch ? clamped_length(work_.a.lengths, b, work_.a.max_length) : 0;
        units_ = unsigned(length_ + work_.p.unit_tokens - 1) / unsigned(work_.p.unit_tokens);
        upto_ = units_ * work_.p.chunks;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int left = __shfl_up_sync(~0u, upto_, step);
            if (lane >= step) upto_ += left;
        }
        all_ = __shfl_sync(~0u, upto_, 31);
        return all_;
    }

    const Work& work_;
    int before_ = 0;                      // units of the sequences before start_
    int start_ = 0, all_ = 0;             // first of the 32 sequences in sight, their units
    int length_ = 0, units_ = 0, upto_ = 0; // of this lane's sequence; units up to and with it
};

} // namespace santa
