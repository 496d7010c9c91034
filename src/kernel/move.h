/* kernel/move.h -- copies of boxes of elements between arrays of any strides.
 *
 *     ch_move m;                                             // a transposed copy
 *     ch__move_make(&m, 2, (int64_t[]){rows, cols}, (int64_t[]){1, rows},
 *                   (int64_t[]){cols, 1}, 4);
 *     ch__move_pieces(&m, from, to, 0, m.n_pieces);
 *
 * Transpose, slice, concatenate, repeat and reverse are the same operation: a box of elements
 * is copied from some strides in the source to other strides in the target. A source stride may
 * be 0 (repeat) or negative (reverse).
 *
 * ch__move_make finds the best loops. Axes that are contiguous on both sides are joined, and
 * the longest run is innermost. If the sides disagree about which axis is contiguous, square
 * blocks are transposed in registers. A move is cut into pieces. Pieces may run on different
 * threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_MOVE_H
#define KERNEL_MOVE_H

#include <stddef.h>
#include <stdint.h>

#define CH_MOVE_RANK 16 /* twice the axes of an array, for the op tile */

typedef struct ch_move {
    int64_t unit; /* bytes that are copied together: an element or more */
    int64_t n_pieces;
    /* The outer axes, in the order of the target, walked like an odometer. Strides are in
     * bytes. */
    int     rank;
    int64_t dim[CH_MOVE_RANK], from[CH_MOVE_RANK], to[CH_MOVE_RANK];
    /* The inner part: a line of n units or, if n_lines > 1, a plane of n_lines lines. In a
     * plane, the units of a line are adjacent in the target, and the lines are adjacent in the
     * source. */
    int64_t n, from_step, to_step;
    int64_t n_lines, from_line, to_line;
    /* A piece is `cut` units of a line, or `cut` lines of a plane, at a position of the
     * odometer. n_cuts pieces make an inner part. */
    int64_t cut, n_cuts;
} ch_move;

/* Plans the move of a box of size `dim`. The strides `from` and `to` are in elements of `bytes`
 * bytes. A box without elements has no pieces. */
void ch__move_make(ch_move *m, int rank, const int64_t *dim, const int64_t *from,
                   const int64_t *to, size_t bytes);
/* Returns true if the move is a single run of bytes, in order, on both sides. */
int ch__move_is_run(const ch_move *m);
/* Returns the bytes that the move writes. */
int64_t ch__move_bytes(const ch_move *m);
/* Copies pieces [begin, end). The source and the target must not overlap. */
void ch__move_pieces(const ch_move *m, const void *from, void *to, int64_t begin, int64_t end);

/* Sets n elements of `bytes` bytes (1, 2, 4 or 8) to the element at `value`. */
void ch__fill(void *to, int64_t n, size_t bytes, const void *value);

/* An array with a border, for the op pad. */
typedef struct ch_border_axis {
    int64_t n;             /* size of the source */
    int64_t before, total; /* offset of the source in the target; size of the target */
    /* Distance of two source elements in the target; 1: they are adjacent. */
    int64_t step;
} ch_border_axis;

typedef struct ch_border {
    int            rank; /* at least 1 */
    ch_border_axis axis[8];
    size_t         bytes; /* of an element */
    /* Elements that are copied together, inside the last axis. */
    int64_t unit;
    /* Rows of the target: the product of all axes except the last. */
    int64_t n_rows;
    char    value[8];
} ch_border;

/* Plans the copy and joins axes that have no border. */
void ch__border_make(ch_border *p, int rank, const ch_border_axis *axis, size_t bytes,
                     const void *value);
/* Writes rows [begin, end) of the target. */
void ch__border_rows(const ch_border *p, const void *from, void *to, int64_t begin,
                     int64_t end);

#endif
