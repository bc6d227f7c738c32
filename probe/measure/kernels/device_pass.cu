/* One pass over many tensors on a CUDA device: sums, largest elements and counts of each, in float64.

Compiled by NVRTC while a training runs (device_kernel.py), so without any header. `pass_TYPE` gives a part of a
tensor to each block and writes the block's results; `join` adds up the blocks of each tensor, always in the same
order: the same tensors give the same bits. Nothing but `parts` and `found` is written. */

#define TENSORS 440
#define THREADS 256
#define VALUES 7
/* Of each tensor, and of each block: sum of squares (of `found`: its root), largest absolute element that is no
NaN (of `found`: NaN where there is one), sum; how many elements are NaN, infinite, 0, and at or beyond bounds. */

typedef unsigned short u16;
typedef long long i64;

/* By value, in the launch itself: gradients lie elsewhere at each step, and a table would have to be copied. */
struct Addresses {
    const void *at[TENSORS];
};

/* Where the tensors are cut: the first block of each and, last, the number of blocks; elements of each; where
each stands in the caller's list; which tensor each block belongs to. */
struct Table {
    const i64 *first, *sizes, *places, *owners;
};

__device__ __forceinline__ double of_f64(double stored) { return stored; }
__device__ __forceinline__ double of_f32(float stored) { return (double)stored; }
__device__ __forceinline__ double of_bf16(u16 stored) { return (double)__uint_as_float((unsigned)stored << 16); }
__device__ __forceinline__ double of_f16(u16 stored) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(stored));
    return (double)value;
}

struct Bounds {
    double low, high;
};

struct Found {
    double squares, largest, sum;
    i64 nans, infs, zeros, beyond;
};

__device__ __forceinline__ void join_with(Found &mine, const Found &other) {
    mine.squares += other.squares;
    mine.largest = other.largest > mine.largest ? other.largest : mine.largest;
    mine.sum += other.sum;
    mine.nans += other.nans;
    mine.infs += other.infs;
    mine.zeros += other.zeros;
    mine.beyond += other.beyond;
}

__device__ __forceinline__ void note(Found &mine, double value, const Bounds bounds) {
    const double size = fabs(value);
    mine.squares += value * value;
    mine.sum += value;
    mine.largest = size > mine.largest ? size : mine.largest;
    mine.nans += value != value;
    mine.infs += size == __longlong_as_double(0x7ff0000000000000LL);
    mine.zeros += value == 0.0;
    mine.beyond += value <= bounds.low || value >= bounds.high;
}

/* Adds up what the threads of a block have; thread 0 has the result. */
__device__ Found of_block(Found mine) {
    __shared__ Found of_warps[THREADS / 32];
    for (int apart = 16; apart; apart /= 2) {
        Found other;
        other.squares = __shfl_down_sync(~0u, mine.squares, apart);
        other.largest = __shfl_down_sync(~0u, mine.largest, apart);
        other.sum = __shfl_down_sync(~0u, mine.sum, apart);
        other.nans = __shfl_down_sync(~0u, mine.nans, apart);
        other.infs = __shfl_down_sync(~0u, mine.infs, apart);
        other.zeros = __shfl_down_sync(~0u, mine.zeros, apart);
        other.beyond = __shfl_down_sync(~0u, mine.beyond, apart);
        join_with(mine, other);
    }
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < THREADS / 32; warp++) join_with(mine, of_warps[warp]);
    return mine;
}

#define PASS(TYPE, STORED)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                      \
        pass_##TYPE(Addresses addresses, Table table, i64 first_tensor, i64 first_block, i64 per_block,        \
                    Bounds bounds, double *parts) {                                                            \
        const i64 block = first_block + blockIdx.x, tensor = table.owners[block];                              \
        const STORED *elements = (const STORED *)addresses.at[tensor - first_tensor];                          \
        const i64 begin = (block - table.first[tensor]) * per_block;                                           \
        const i64 end = min(begin + per_block, table.sizes[tensor]);                                           \
        Found mine = {};                                                                                       \
        _Pragma("unroll 8") for (i64 at = begin + threadIdx.x; at < end; at += THREADS)                        \
            note(mine, of_##TYPE(elements[at]), bounds);                                                       \
        mine = of_block(mine);                                                                                 \
        if (threadIdx.x == 0) {                                                                                \
            double *part = parts + block * VALUES;                                                             \
            part[0] = mine.squares, part[1] = mine.largest, part[2] = mine.sum;                                \
            part[3] = (double)mine.nans, part[4] = (double)mine.infs;                                          \
            part[5] = (double)mine.zeros, part[6] = (double)mine.beyond;                                       \
        }                                                                                                      \
    }

PASS(f64, double)
PASS(f32, float)
PASS(f16, u16)
PASS(bf16, u16)

/* One block for each tensor; `found` is (VALUES, tensors). */
extern "C" __global__ void __launch_bounds__(THREADS)
    join(Table table, const double *parts, i64 tensors, double *found) {
    const i64 tensor = blockIdx.x;
    Found mine = {};
    for (i64 block = table.first[tensor] + threadIdx.x; block < table.first[tensor + 1]; block += THREADS) {
        const double *part = parts + block * VALUES;
        const Found other = {part[0],      part[1],      part[2],     (i64)part[3],
                             (i64)part[4], (i64)part[5], (i64)part[6]};
        join_with(mine, other);
    }
    mine = of_block(mine);
    if (threadIdx.x != 0) return;
    found += table.places[tensor];
    found[0] = sqrt(mine.squares);
    found[tensors] = mine.nans ? __longlong_as_double(0x7ff8000000000000LL) : mine.largest;
    found[2 * tensors] = mine.sum;
    found[3 * tensors] = (double)mine.nans;
    found[4 * tensors] = (double)mine.infs;
    found[5 * tensors] = (double)mine.zeros;
    found[6 * tensors] = (double)mine.beyond;
}
