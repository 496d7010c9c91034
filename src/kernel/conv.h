/* kernel/conv.h -- convolution over images, and its two gradients.
 *
 *     y (n, oh, ow, o) = x (n, h, w, c) with filter (kh, kw, c / groups, o)
 *
 * All three are the same sum over different indices, so a single description serves all of
 * them. oneDNN computes them in f32 if it has a fast implementation for the sizes. Our own
 * engine, which uses matrix products, supports all sizes in f32 and f64. 16-bit floats are
 * widened to f32 image by image and rounded once, at the end.
 *
 * A convolution is cut into tiles of images. The cut depends on the shape alone, so that
 * results do not depend on the number of threads. A phase before the tiles brings the filter
 * into the layout of the engine. For the gradient of the filter, a phase after the tiles sums
 * the results of the tiles in order.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_CONV_H
#define KERNEL_CONV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "cohort/shape.h"

typedef struct ch_conv_dims {
    int64_t n, h, w, c; /* x: (n, h, w, c) */
    int64_t kh, kw, o;  /* filter: (kh, kw, c / groups, o) */
    int64_t oh, ow;     /* y: (n, oh, ow, o) */
    /* stride: pixels of x between two outputs. spread (dilation): pixels between two taps. */
    int64_t stride[2], spread[2];
    int64_t pad[2]; /* zeros before the first row and column of x */
    int64_t groups;
} ch_conv_dims;

typedef enum ch_conv_kind {
    CH_CONV_OUTPUT, /* y from x and the filter */
    CH_CONV_INPUT,  /* dx from dy and the filter */
    CH_CONV_FILTER, /* df from x and dy */
} ch_conv_kind;

typedef struct ch_conv_needs {
    /* Bytes of the filter in the layout of the engine. 0: the engine reads our layout. */
    size_t filter_bytes;
    size_t scratch_bytes; /* bytes of scratch memory of a run */
} ch_conv_needs;

/* An engine computes in f32 or f64, on all images that it is given. */
typedef struct ch_conv_engine {
    const char *name;
    bool (*fits)(ch_conv_kind kind, ch_dtype dtype, const ch_conv_dims *d);
    ch_status (*open)(ch_conv_kind kind, ch_dtype dtype, const ch_conv_dims *d,
                      ch_conv_needs *needs, void **state);
    /* Copies a filter into the layout of the engine. Called only if needs.filter_bytes > 0. */
    ch_status (*pack)(const void *state, const void *filter, void *packed);
    /* Computes `out` from a and b, whose order is in the comments of ch_conv_kind. A filter
     * must be packed if needs.filter_bytes > 0. */
    ch_status (*run)(const void *state, const void *a, const void *b, void *out, void *scratch);
    void (*close)(void *state); /* accepts NULL */
} ch_conv_engine;

extern const ch_conv_engine ch__conv_onednn, ch__conv_own;

/* ---- a whole convolution, in tiles ---- */

/* A size of tile. The last tile may have fewer images than the others. */
typedef struct ch_conv_part {
    ch_conv_dims  dims;
    ch_conv_needs needs;
    void         *state;
    bool          is_open;
    size_t        filter_at; /* offset of the packed filter in the scratch memory */
} ch_conv_part;

typedef struct ch_conv {
    const ch_conv_engine *engine;
    ch_conv_kind          kind;
    ch_dtype              dtype, compute;
    ch_conv_dims          dims;
    int64_t               images; /* images of a tile; the last may have fewer */
    int                   n_tiles, n_phases, phase_tiles[2];
    /* [0]: all tiles except the last. [1]: the last tile; for 16-bit floats, a single image. */
    ch_conv_part part[2];
    /* Offsets in the scratch memory, in this order: the widened filter; the packed filters; the
     * tiles, tile_bytes each; the partial sums, sum_bytes each. Offsets in a tile: its widened
     * operands, its result, the scratch memory of the engine. */
    size_t tiles_at, tile_bytes, b_at, out_at, engine_at, sums_at, sum_bytes;
    size_t scratch_bytes;
} ch_conv;

/* Returns true if engine e supports the tiles of this convolution. */
bool ch__conv_fits(const ch_conv_engine *e, ch_conv_kind kind, ch_dtype dtype,
                   const ch_conv_dims *d);
/* Plans a convolution and opens its engine. After an error the caller must not call
 * ch__conv_close. */
CH_MUST_CHECK ch_status ch__conv_open(ch_conv *v, const ch_conv_engine *e, ch_conv_kind kind,
                                      ch_dtype dtype, const ch_conv_dims *d);
/* Runs a tile of [0, phase_tiles[phase]) of a phase of [0, n_phases). All tiles of a phase must
 * have ended before the next phase begins. Tiles of a phase may run in parallel. */
CH_MUST_CHECK ch_status ch__conv_run(const ch_conv *v, int phase, int tile, const void *a,
                                     const void *b, void *out, void *scratch);
/* Returns the rows [*row, *row + *rows) of the result, seen as (n * oh * ow, o), that a tile of
 * the last phase of CH_CONV_OUTPUT computes. */
void ch__conv_region(const ch_conv *v, int tile, int64_t *row, int64_t *rows);
void ch__conv_close(ch_conv *v);

#endif
