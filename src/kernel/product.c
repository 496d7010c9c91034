/* kernel/product.c -- matmul of whole arrays.
 *
 * ch_product is the plan. ch__product_plan merges the batch axes and chooses the pieces,
 * ch__product_open opens an engine for each size of piece, ch__product_run computes the pieces
 * of a tile. The caller is ops/matmul.c.
 *
 * Invariants:
 *   1. Every element of c belongs to exactly one piece, and every piece to exactly one tile.
 *   2. The plan is read-only while tiles run.
 *   3. For bf16 the cut depends on the shapes alone; for other types it may depend on the
 *      number of threads.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernel/product.h"

#include <string.h>

#include "base/mem.h"

enum {
    TILE_WORK = 8 << 20,  /* multiplications that are worth a tile */
    LARGE_WORK = 1 << 30, /* multiplications of a thread from which its part is cut again */
    /* Minimum rows and columns of a tile. In smaller tiles packing costs more than a thread
     * gains. */
    MIN_SIDE = 128,
    ROW_GRAIN = 12, /* tiles are multiples of these sizes */
    COL_GRAIN = 32
};

/* ---- batch axes ---- */

typedef struct axis {
    int64_t size, a_step, b_step;
} axis;

/* Finds the batch axes, outermost first, without axes of size 1. Returns their number. */
static int batch_axes(ch_shape a, ch_shape b, axis *out)
{
    int     rank = a.rank > b.rank ? a.rank : b.rank, n = 0;
    int64_t a_step = a.rank >= 2 ? a.dim[a.rank - 1] * a.dim[a.rank - 2] : 1;
    int64_t b_step = b.rank >= 2 ? b.dim[b.rank - 1] * b.dim[b.rank - 2] : 1;
    axis    all[CH_MAX_RANK] = {{0}};

    for (int k = 3; k <= rank; k++) {
        int64_t x = k <= a.rank ? a.dim[a.rank - k] : 1,
                y = k <= b.rank ? b.dim[b.rank - k] : 1;

        all[rank - k] = (axis){x != 1 ? x : y, x != 1 ? a_step : 0, y != 1 ? b_step : 0};
        a_step *= x;
        b_step *= y;
    }
    for (int k = 0; k < rank - 2; k++)
        if (all[k].size != 1)
            out[n++] = all[k];
    return n;
}

/* Joins neighbour axes that are a single walk through memory in both operands. Returns the
 * number of axes that are left. */
static int merge_axes(int n, axis *x)
{
    int last = 0;

    for (int k = 1; k < n; k++) {
        if (x[last].a_step == x[k].a_step * x[k].size &&
            x[last].b_step == x[k].b_step * x[k].size)
            x[last] = (axis){x[last].size * x[k].size, x[k].a_step, x[k].b_step};
        else
            x[++last] = x[k];
    }
    return n > 0 ? last + 1 : 0;
}

static void plan_axes(ch_product *p, ch_shape a, ch_shape b)
{
    ch_gemm_dims *d = &p->dims;
    axis          x[CH_MAX_RANK];
    int           n = merge_axes(batch_axes(a, b, x), x);

    if (n > 0 && x[n - 1].b_step == 0 && x[n - 1].a_step == d->m * d->k && !d->ta)
        d->m *= x[--n].size; /* the same b for all: the batch becomes more rows of a */
    d->c_step = d->m * d->n;
    d->batch = 1;
    if (n > 0) {
        n--;
        d->batch = x[n].size;
        d->a_step = x[n].a_step;
        d->b_step = x[n].b_step;
    }
    p->c_outer = d->batch * d->c_step;
    p->n_outer = n;
    for (int k = 0; k < n; k++) {
        p->outer[k] = x[k].size;
        p->a_outer[k] = x[k].a_step;
        p->b_outer[k] = x[k].b_step;
    }
}

/* ---- tiles ---- */

/* Halves the rows or the columns until there are enough tiles, and prefers the cheaper cut.
 * Tiles side by side each pack the same rows of A; tiles below each other each pack the same
 * columns of B. An operand that is transposed when it is packed costs twice. An operand that is
 * read in place costs nothing. */
static void cut_block(ch_product *p, int64_t n_wanted)
{
    const ch_gemm_dims   *d = &p->dims;
    const ch_gemm_engine *engine = ch__gemm_for(d);
    int64_t               rows = 1, cols = 1;
    int64_t               a = d->ta ? 1 : 2, b = d->tb ? 2 : 1;

    if (engine != NULL && engine->reads_a != NULL && engine->reads_a(d))
        a = 0;

    while (rows * cols < n_wanted) {
        int64_t m = d->m / rows, n = d->n / cols;

        if (m >= 2 * MIN_SIDE && (m * a >= n * b || n < 2 * MIN_SIDE))
            rows *= 2;
        else if (n >= 2 * MIN_SIDE)
            cols *= 2;
        else
            break;
    }
    if (rows > 1)
        p->rows = ch__units(ch__units(d->m, rows), ROW_GRAIN) * ROW_GRAIN;
    if (cols > 1)
        p->cols = ch__units(ch__units(d->n, cols), COL_GRAIN) * COL_GRAIN;
}

/* Returns how many times the inner product is computed. */
static int64_t outer_steps(const ch_product *p)
{
    int64_t n = 1;

    for (int k = 0; k < p->n_outer; k++)
        n *= p->outer[k];
    return n;
}

/* Returns the maximum number of tiles: one for each thread, or two if they are large, in case a
 * thread is delayed. For bf16 a constant. */
static int64_t most_tiles(ch_dtype t, int threads, double work)
{
    if (t == CH_BF16)
        return 8;
    return threads == 1 || work < (double)LARGE_WORK * threads ? threads : 2 * (int64_t)threads;
}

static void plan_tiles(ch_product *p, int threads)
{
    const ch_gemm_dims *d = &p->dims;
    int64_t             steps = outer_steps(p), n_wanted, most;
    double              work = (double)d->m * (double)d->n * (double)d->k;

    work *= (double)d->batch * (double)steps;
    most = most_tiles(d->dtype, threads, work);
    n_wanted = work < (double)TILE_WORK * (double)most ? (int64_t)work / TILE_WORK : most;
    n_wanted = n_wanted < 1 ? 1 : n_wanted;
    p->batches = d->batch;
    p->rows = d->m;
    p->cols = d->n;
    if (n_wanted > steps && d->batch * steps >= n_wanted) {
        p->batches = ch__units(d->batch, ch__units(n_wanted, steps));
    } else if (n_wanted > steps) {
        p->batches = 1;
        cut_block(p, ch__units(n_wanted, steps * d->batch));
    }
    p->n_batch = ch__units(d->batch, p->batches);
    p->n_row = ch__units(d->m, p->rows);
    p->n_col = ch__units(d->n, p->cols);
    p->n_pieces = steps * p->n_batch * p->n_row * p->n_col;
    p->n_tiles = (int)(p->n_pieces < 2 * n_wanted ? p->n_pieces : n_wanted);
}

void ch__product_plan(ch_product *p, ch_dtype dtype, ch_shape a, bool ta, ch_shape b, bool tb,
                      int threads)
{
    ch_gemm_dims *d = &p->dims;

    memset(p, 0, sizeof(*p));
    d->dtype = dtype;
    d->ta = ta;
    d->tb = tb;
    d->m = a.dim[a.rank - (ta ? 1 : 2)];
    d->k = a.dim[a.rank - (ta ? 2 : 1)];
    d->n = b.dim[b.rank - (tb ? 2 : 1)];
    d->lda = a.dim[a.rank - 1];
    d->ldb = b.dim[b.rank - 1];
    d->ldc = d->n;
    plan_axes(p, a, b);
    p->n_tiles = 1;
    if (d->batch > 0 && d->m > 0 && d->n > 0 && outer_steps(p) > 0)
        plan_tiles(p, threads);
}

/* ---- parts ---- */

/* Returns the sizes of the piece at [last batches][last rows][last columns]. */
static ch_gemm_dims part_dims(const ch_product *p, int batch, int row, int col)
{
    ch_gemm_dims d = p->dims;

    d.batch = batch ? d.batch - (p->n_batch - 1) * p->batches : p->batches;
    d.m = row ? d.m - (p->n_row - 1) * p->rows : p->rows;
    d.n = col ? d.n - (p->n_col - 1) * p->cols : p->cols;
    return d;
}

bool ch__product_fits(const ch_product *p, const ch_gemm_engine *e)
{
    ch_gemm_dims d =
        p->n_pieces > 0 ? part_dims(p, p->n_batch == 1, p->n_row == 1, p->n_col == 1) : p->dims;

    return e->fits(&d);
}

/* Opens an engine for a size of piece. Uses our own engine if the piece is too small for e. */
static ch_status part_open(ch_product_part *t, const ch_gemm_engine *e, size_t *scratch_bytes)
{
    size_t    bytes = 0;
    ch_status rc;

    t->engine = e->fits(&t->dims) ? e : &ch__gemm_own;
    rc = t->engine->open(&t->dims, &t->state, &bytes);
    if (rc != CH_OK)
        t->engine = NULL;
    if (*scratch_bytes < bytes)
        *scratch_bytes = bytes;
    return rc;
}

ch_status ch__product_open(ch_product *p, const ch_gemm_engine *e)
{
    for (int i = 0; i < 8 && p->n_pieces > 0; i++) {
        int              batch = i >> 2, row = i >> 1 & 1, col = i & 1;
        ch_product_part *t = &p->part[batch][row][col];
        ch_status        rc;

        if ((!batch && p->n_batch == 1) || (!row && p->n_row == 1) || (!col && p->n_col == 1))
            continue; /* the only piece along an axis is also its last */
        t->dims = part_dims(p, batch, row, col);
        rc = part_open(t, e, &p->tile_scratch_bytes);
        if (rc != CH_OK) {
            ch__product_close(p);
            return rc;
        }
    }
    p->tile_scratch_bytes =
        (size_t)ch__units((int64_t)p->tile_scratch_bytes, CH_ALIGN) * CH_ALIGN;
    return CH_OK;
}

void ch__product_close(ch_product *p)
{
    ch_product_part *t = &p->part[0][0][0];

    for (int i = 0; i < 8; i++)
        if (t[i].engine != NULL)
            t[i].engine->close(t[i].state);
}

size_t ch__product_scratch_bytes(const ch_product *p)
{
    return p->tile_scratch_bytes * (size_t)p->n_tiles;
}

/* ---- running ---- */

/* Computes the offsets of a and b, in elements, of step i of the outer axes. */
static void outer_offsets(const ch_product *p, int64_t i, int64_t *a, int64_t *b)
{
    *a = *b = 0;
    for (int k = p->n_outer - 1; k >= 0; k--) {
        *a += i % p->outer[k] * p->a_outer[k];
        *b += i % p->outer[k] * p->b_outer[k];
        i /= p->outer[k];
    }
}

static ch_status run_piece(const ch_product *p, int64_t piece, const char *a, const char *b,
                           char *c, void *scratch)
{
    const ch_gemm_dims    *d = &p->dims;
    int64_t                bytes = (int64_t)ch_dtype_bytes(d->dtype), to_a, to_b, to_c;
    int64_t                col = piece % p->n_col, row = piece / p->n_col % p->n_row;
    int64_t                batch = piece / p->n_col / p->n_row % p->n_batch;
    int64_t                step = piece / p->n_col / p->n_row / p->n_batch;
    const ch_product_part *t =
        &p->part[batch == p->n_batch - 1][row == p->n_row - 1][col == p->n_col - 1];

    outer_offsets(p, step, &to_a, &to_b);
    to_a += batch * p->batches * d->a_step + row * p->rows * (d->ta ? 1 : d->lda);
    to_b += batch * p->batches * d->b_step + col * p->cols * (d->tb ? d->ldb : 1);
    to_c = step * p->c_outer + batch * p->batches * d->c_step + row * p->rows * d->ldc +
           col * p->cols;
    return t->engine->run(&t->dims, t->state, a + to_a * bytes, b + to_b * bytes,
                          c + to_c * bytes, scratch);
}

ch_status ch__product_run(const ch_product *p, int tile, const void *a, const void *b, void *c,
                          void *scratch)
{
    char   *own = p->tile_scratch_bytes > 0
                      ? (char *)scratch + (size_t)tile * p->tile_scratch_bytes
                      : NULL;
    int64_t from = p->n_pieces * tile / p->n_tiles, to = p->n_pieces * (tile + 1) / p->n_tiles;
    ch_status rc = CH_OK;

    for (int64_t i = from; i < to && rc == CH_OK; i++)
        rc = run_piece(p, i, a, b, c, own);
    return rc;
}

void ch__product_region(const ch_product *p, int tile, int64_t *row, int64_t *rows,
                        int64_t *col, int64_t *cols)
{
    int64_t r = tile / p->n_col, c = tile % p->n_col;

    *row = r * p->rows;
    *col = c * p->cols;
    *rows = r == p->n_row - 1 ? p->dims.m - *row : p->rows;
    *cols = c == p->n_col - 1 ? p->dims.n - *col : p->cols;
}
