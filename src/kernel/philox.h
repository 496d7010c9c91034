/* kernel/philox.h -- random numbers as a function of a key and a position.
 *
 * Philox4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011)
 * computes a block of four words from a counter and a key. There is no state. The number at a
 * position does not depend on the order of the calls or on the number of threads.
 *
 * Words come in groups of CH_PHILOX_GROUP: the 16 blocks 16 g .. 16 g + 15, first word 0 of all
 * blocks, then word 1 and so on, so that 16 lanes can work side by side. A draw uses a single
 * word, or two words that are 16 apart, or four. So a group holds 64, 32 or 16 draws.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_PHILOX_H
#define KERNEL_PHILOX_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/simd.h"

enum {
    CH_PHILOX_LANES = 16,
    CH_PHILOX_GROUP = 64, /* words */
    /* Words that callers compute at a time. They fit the first-level cache. */
    CH_PHILOX_CHUNK = 1024,
};

/* A stream: the key and the upper half of the counter. The lower half is the number of the
 * block. */
typedef struct ch_philox {
    uint32_t key[2], high[2];
} ch_philox;

/* The identity of a stream. */
typedef struct ch_philox_name {
    uint64_t seed; /* seed of the run */
    uint64_t own;  /* seed of the op */
    int64_t  step;
    int64_t  iteration; /* of the loops around the op; 0: none */
    uint32_t ordinal;   /* of the op in its step */
    uint32_t replica;
} ch_philox_name;

/* Computes a block of four words. */
void ch__philox_block(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* Returns the stream of a name. Different names with the same pair of seeds always have
 * different streams. */
ch_philox ch__philox_stream(const ch_philox_name *name);

/* A normal distribution. A number is mean + deviation * quantile(from + width * u), where
 * `quantile` is that of the standard normal distribution and u is the middle of one of 2^32
 * (f64: 2^52) equal parts of (0, 1). 2 * from + width must be 1. Quantiles are at most 6.7
 * (f32: 6.4) in magnitude. */
typedef struct ch_normal {
    double mean, deviation, from, width;
} ch_normal;

typedef struct ch_philox_table {
    /* Computes the words of n_groups groups, from `group` on. */
    void (*words)(const ch_philox *p, int64_t group, int64_t n_groups, uint32_t *w);

    /* Compute min(lo + u * size, top), where u >= 0 and u < 1 is a multiple of 2^-24 (f64:
     * 2^-52). */
    void (*uniform_f32)(int64_t n, const uint32_t *w, float lo, float size, float top,
                        float *out);
    void (*uniform_f64)(int64_t n, const uint32_t *w, double lo, double size, double top,
                        double *out);
    void (*normal_f32)(int64_t n, const uint32_t *w, const ch_normal *p, float *out);
    void (*normal_f64)(int64_t n, const uint32_t *w, const ch_normal *p, double *out);

    /* Compute x * scale if the word is at least `least`, otherwise 0. `out` may be x. */
    void (*keep_f32)(int64_t n, const uint32_t *w, uint32_t least, float scale, const float *x,
                     float *out);
    void (*keep_f64)(int64_t n, const uint32_t *w, uint32_t least, double scale,
                     const double *x, double *out);
    /* Write the value `one` if the word is at most `most`, otherwise 0. The suffix is the bytes
     * of an element. */
    void (*pick_1)(int64_t n, const uint32_t *w, uint32_t most, uint8_t one, uint8_t *out);
    void (*pick_2)(int64_t n, const uint32_t *w, uint32_t most, uint16_t one, uint16_t *out);
    void (*pick_4)(int64_t n, const uint32_t *w, uint32_t most, uint32_t one, uint32_t *out);
    void (*pick_8)(int64_t n, const uint32_t *w, uint32_t most, uint64_t one, uint64_t *out);
} ch_philox_table;

CH_SIMD_DECLARE(ch_philox_table, ch__philox_table)

/* Return the functions of the SIMD level in use, and of a given level up to ch__simd_best (for
 * tests). */
const ch_philox_table *ch__philox(void);
const ch_philox_table *ch__philox_at(ch_simd level);

/* Compute n integers in [0, range), range > 0. The probabilities of the integers are equal to
 * within a factor of 1 +- 2^-32. below_2 uses draws of two words and requires a range of at
 * most 2^32; below_4 uses draws of four words and supports all ranges. */
void ch__philox_below_2(int64_t n, const uint32_t *w, uint64_t range, uint64_t *out);
void ch__philox_below_4(int64_t n, const uint32_t *w, uint64_t range, uint64_t *out);

/* Writes a permutation of 0 .. n - 1 that depends on the stream only. */
void ch__philox_permutation(const ch_philox *p, int64_t n, int64_t *out);

#endif
