/* kernel/move.h -- copying boxes of elements between arrays of any strides.
 *
 *     ch_move m;
 *     ch__move_make(&m, 2, (int64_t[]){rows, cols}, (int64_t[]){1, rows}, (int64_t[]){cols, 1},
 * 4); ch__move_pieces(&m, from, to, 0, m.n_pieces);       // a transposed copy
 *
 * Transposing, slicing, joining, repeating and reversing are all one thing: a box of elements
 * that stand at some strides there and are wanted at some strides here. A stride may be 0 in
 * `from` (what is repeated) and negative (what is reversed). Making a move finds the best loops
 * for it: axes that both sides can take in one stride become one, the longest run is innermost,
 * and where the sides disagree about which axis is contiguous, square blocks are turned in
 * registers. A move is cut into pieces, any of which may run on any thread.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KERNEL_MOVE_H
#define KERNEL_MOVE_H

#include <stddef.h>
#include <stdint.h>

#define CH_MOVE_RANK 16 /* every axis of an array, twice: for tile */

typedef struct ch_move {
    int64_t unit; /* bytes that stay together: an element, or more */
    int64_t n_pieces;
    /* The outer axes, in order of the target, walked like an odometer; strides in bytes. */
    int     rank;
    int64_t dim[CH_MOVE_RANK], from[CH_MOVE_RANK], to[CH_MOVE_RANK];
    /* The inner part: a line of n units; or, if n_lines > 1, a plane of n_lines lines. In a
     * plane, units of a line are adjacent in the target, and lines are adjacent in the source.
     */
    int64_t n, from_step, to_step;
    int64_t n_lines, from_line, to_line;
    /* A piece is `cut` units of a line, or `cut` lines of a plane, of one place of the
     * odometer. */
    int64_t cut, n_cuts;
} ch_move;

/* The move of a box: sizes, and strides in elements of `bytes`. A box without elements has no
 * pieces. */
void ch__move_make(ch_move *m, int rank, const int64_t *dim, const int64_t *from,
                   const int64_t *to, size_t bytes);
/* True if the move is one run of bytes, in order, on both sides. */
int ch__move_is_run(const ch_move *m);
/* Bytes it writes. */
int64_t ch__move_bytes(const ch_move *m);
/* Does pieces [begin, end). The sides do not overlap. */
void ch__move_pieces(const ch_move *m, const void *from, void *to, int64_t begin, int64_t end);

/* Sets n elements of `bytes` (1, 2, 4 or 8) to the one at `value`. */
void ch__fill(void *to, int64_t n, size_t bytes, const void *value);

/* An array with a border: what pad does. */
typedef struct ch_border_axis {
    int64_t n;             /* of the source */
    int64_t before, total; /* in the target: where the source begins, and the size */
    int64_t step;          /* 1: the source's elements are adjacent in the target */
} ch_border_axis;

typedef struct ch_border {
    int            rank; /* at least 1 */
    ch_border_axis axis[8];
    size_t         bytes;  /* of an element */
    int64_t        unit;   /* elements that stay together, inside the last axis */
    int64_t        n_rows; /* of the target: all axes but the last */
    char           value[8];
} ch_border;

/* Joins what can be joined. */
void ch__border_make(ch_border *p, int rank, const ch_border_axis *axis, size_t bytes,
                     const void *value);
/* Writes rows [begin, end) of the target. */
void ch__border_rows(const ch_border *p, const void *from, void *to, int64_t begin,
                     int64_t end);

#endif
