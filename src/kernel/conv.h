/* kernel/conv.h -- convolution over images, and its two gradients.
 *
 *     y (n, oh, ow, o) = x (n, h, w, c) with filter (kh, kw, c / groups, o)
 *
 * The three are one sum, over other indices; so one description serves them all. oneDNN does
 * them in f32, for what it has good code for; our own, by way of matrix products, does all of
 * them in f32 and f64. 16-bit floats are widened to f32 tile by tile and rounded once, at the
 * end.
 *
 * A convolution is cut over images, by its shape alone. A filter is brought into the engine's
 * layout in a phase before; the filter's gradient is summed over the tiles, in order, in one
 * after.
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
    int64_t n, h, w, c;           /* x */
    int64_t kh, kw, o;            /* the filter: (kh, kw, c / groups, o) */
    int64_t oh, ow;               /* y: (n, oh, ow, o) */
    int64_t stride[2], spread[2]; /* from one output to the next; from one tap to the next */
    int64_t pad[2];               /* zeros before the first row and column of x */
    int64_t groups;
} ch_conv_dims;

typedef enum ch_conv_kind {
    CH_CONV_OUTPUT, /* y of x and the filter */
    CH_CONV_INPUT,  /* dx of dy and the filter */
    CH_CONV_FILTER, /* df of x and dy */
} ch_conv_kind;

typedef struct ch_conv_needs {
    size_t filter_bytes;  /* of the filter in the engine's own layout; 0: as it is */
    size_t scratch_bytes; /* of a run */
} ch_conv_needs;

/* Engines see f32 or f64 and all the images that they are given. */
typedef struct ch_conv_engine {
    const char *name;
    bool (*fits)(ch_conv_kind kind, ch_dtype dtype, const ch_conv_dims *d);
    ch_status (*open)(ch_conv_kind kind, ch_dtype dtype, const ch_conv_dims *d,
                      ch_conv_needs *needs, void **state);
    ch_status (*pack)(const void *state, const void *filter, void *packed);
    /* a and b in the order of ch_conv_kind's comments; a filter is packed if it has to be. */
    ch_status (*run)(const void *state, const void *a, const void *b, void *out, void *scratch);
    void (*close)(void *state); /* NULL is fine */
} ch_conv_engine;

extern const ch_conv_engine ch__conv_onednn, ch__conv_own;

/* ---- a whole convolution, in tiles ---- */

typedef struct ch_conv_part { /* the last tile may have fewer images than the others */
    ch_conv_dims  dims;
    ch_conv_needs needs;
    void         *state;
    bool          is_open;
    size_t        filter_at; /* in the scratch memory */
} ch_conv_part;

typedef struct ch_conv {
    const ch_conv_engine *engine;
    ch_conv_kind          kind;
    ch_dtype              dtype, compute;
    ch_conv_dims          dims;
    int64_t               images; /* in a tile */
    int                   n_tiles, n_phases, phase_tiles[2];
    ch_conv_part          part[2]; /* [last]; of 16-bit floats [1]: an image */
    /* Where things are in the scratch memory: the filter widened, each tile's own (of
     * tile_bytes: its operands widened, its result, what the engine needs), the tiles' partial
     * sums. */
    size_t tiles_at, tile_bytes, b_at, out_at, engine_at, sums_at, sum_bytes;
    size_t scratch_bytes;
} ch_conv;

bool ch__conv_fits(const ch_conv_engine *e, ch_conv_kind kind, ch_dtype dtype,
                   const ch_conv_dims *d);
/* After a failure there is nothing to close. */
CH_MUST_CHECK ch_status ch__conv_open(ch_conv *v, const ch_conv_engine *e, ch_conv_kind kind,
                                      ch_dtype dtype, const ch_conv_dims *d);
CH_MUST_CHECK ch_status ch__conv_run(const ch_conv *v, int phase, int tile, const void *a,
                                     const void *b, void *out, void *scratch);
/* Which of the result's rows (n * oh * ow, o) a tile of the last phase of CH_CONV_OUTPUT makes.
 */
void ch__conv_region(const ch_conv *v, int tile, int64_t *row, int64_t *rows);
void ch__conv_close(ch_conv *v);

#endif
