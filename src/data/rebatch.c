/* data/rebatch.c -- the stages that regroup rows: unbatch, rebatch, and split over replicas.
 *
 * All three cut input elements (batches) into pieces of rows. `rowing` is the common base of
 * their cursors: the current input element and the number of its rows that were returned. A
 * piece is a view of the input element and references its memory. Only rebatch copies, when a
 * new batch has rows of several input elements. data/distribute.c creates the stage `split`.
 *
 * Invariants:
 *   1. All components of an element have the same number of rows (spec 5.3.6). A ragged
 *      component is two parts, values and row splits, which are cut together.
 *   2. Rows are returned in order, each once. Rows are left out only by drop_remainder, and by
 *      a split that leaves pieces to other workers.
 *   3. An error of the input is marked with ch__error_between, because it does not stand for a
 *      single element of these stages.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "data/iterator.h"
#include "data/rows.h"

/* An input element that is returned in pieces. */
typedef struct rowing {
    ch_cursor   base;
    ch_element *whole;  /* current input element, owned by `keeper`; NULL: none */
    ch_buffer  *keeper; /* buffer that owns `whole`; pieces reference it */
    int64_t     at, n;  /* rows returned, and rows in all */
} rowing;

static void rows_drop(rowing *r)
{
    if (r->keeper != NULL)
        ch__buffer_unref(r->keeper); /* the last reference frees `whole` */
    r->keeper = NULL;
    r->whole = NULL;
    r->at = r->n = 0;
}

/* Makes `e` the current element. Takes over `e`, also on an error. */
static ch_status rows_of(rowing *r, ch_element *e)
{
    ch_status rc = ch__rows_count(r->base.dataset->in[0], e, r->base.stage->name, &r->n);

    if (rc != CH_OK) {
        ch__element_free(e);
        return rc;
    }
    r->keeper = ch__element_buffer(e);
    if (r->keeper == NULL)
        return ch__fail_memory(r->base.stage->name);
    r->whole = e;
    return CH_OK;
}

/* Reads the next input element. r->whole stays NULL if the input has ended. An error is marked
 * with ch__error_between: rebatch fills its batch with later rows, and split loses a whole
 * group of pieces. */
static ch_status rows_next(rowing *r)
{
    ch_element *e = NULL;
    ch_status   rc;

    rows_drop(r);
    rc = ch__cursor_next(r->base.in[0], &e);
    if (rc == CH_OK && e != NULL)
        rc = rows_of(r, e);
    return rc == CH_OK ? CH_OK : ch__error_between(rc);
}

/* Returns a view of the rows from `from` up to, without, `to` of a part. */
static ch_part cut(const ch_part *p, int64_t from, int64_t to)
{
    ch_shape row = ch_shape_make(p->shape.rank - 1, p->shape.dim + 1);
    size_t   bytes = (size_t)ch_shape_count(row) * ch_dtype_bytes(p->dtype);
    ch_part  some = *p;

    if (some.data != NULL)
        some.data = (const char *)some.data + (size_t)from * bytes;
    if (some.dtype != CH_STR) /* the rows behind the view are readable memory (ch_part.room) */
        some.room += (size_t)(p->shape.dim[0] - to) * bytes;
    some.shape.dim[0] = to - from;
    return some;
}

/* Writes the row splits of rows `from` up to `to` into `room`, counted from 0 again. Returns
 * them as a part. */
static ch_part cut_splits(const ch_part *p, int64_t from, int64_t to, int64_t *room)
{
    ch_part some = {.dtype = CH_I64, .data = room};

    some.shape = ch_shape_make(1, &(int64_t){to - from + 1});
    for (int64_t r = from; r <= to; r++)
        room[r - from] = ch__row_split(p, r) - ch__row_split(p, from);
    return some;
}

/* Creates an element of the next `count` rows, and advances r->at. */
static ch_status rows_piece(rowing *r, int64_t count, ch_element **out)
{
    const ch_dataset *d = r->base.dataset->in[0];
    const ch_element *w = r->whole;
    int64_t           from = r->at, to = from + count, *room;
    size_t            n_room = 0;

    for (int i = 0; i < w->n; i++)
        n_room += ch__rows_values_of(d, i) >= 0 ? (size_t)count + 1 : 0;
    ch_element *e = ch__element_new(w->n, 1, n_room * sizeof(*room));
    if (e == NULL)
        return ch__fail_memory(r->base.stage->name);
    room = e->room;
    for (int i = 0; i < w->n; i++) {
        const ch_part *p = &w->part[i];
        int            splits = ch__rows_splits_of(d, i);

        if (splits >= 0) {
            e->part[i] = cut(p, ch__row_split(&w->part[splits], from),
                             ch__row_split(&w->part[splits], to));
        } else if (ch__rows_values_of(d, i) >= 0) {
            e->part[i] = cut_splits(p, from, to, room);
            room += count + 1;
        } else {
            e->part[i] = cut(p, from, to);
        }
    }
    e->owner[0] = ch__buffer_ref(r->keeper);
    r->at = to;
    *out = e;
    return CH_OK;
}

static void rows_save(const rowing *r, ch_saver *s)
{
    ch__save_int(s, r->whole != NULL);
    ch__save_int(s, r->at);
    if (r->whole != NULL)
        ch__save_element(s, r->whole);
}

static ch_status rows_load(rowing *r, ch_loader *l)
{
    bool        has_rows = ch__load_int(l, 0, 1) != 0;
    int64_t     at = ch__load_count(l);
    ch_element *e = has_rows ? ch__load_element(l, r->base.dataset->in[0]) : NULL;

    rows_drop(r);
    if (ch__load_fails(l))
        return ch__load_status(l);
    ch_status rc = e == NULL ? CH_OK : rows_of(r, e);
    r->at = at < r->n ? at : r->n;
    return rc;
}

static ch_status rows_rewind(ch_cursor *c)
{
    rows_drop((rowing *)c);
    return ch__rewind_inputs(c);
}

static void rows_save_all(ch_cursor *c, ch_saver *s)
{
    rows_save((rowing *)c, s);
    ch__save_inputs(c, s);
}

static ch_status rows_load_all(ch_cursor *c, ch_loader *l)
{
    ch_status rc = rows_load((rowing *)c, l);

    return rc == CH_OK ? ch__load_inputs(c, l) : rc;
}

static void rows_close(ch_cursor *c)
{
    rows_drop((rowing *)c);
}

/* Checks that the input has components and that each has an axis of rows (spec 5.3.6). */
static ch_status infer_rows(ch_dataset *d)
{
    if (d->in[0]->n_parts == 0)
        return ch__dataset_fail(d, "its elements have no components");
    for (int i = 0; i < d->in[0]->n_parts; i++)
        if (d->in[0]->spec[i].shape.rank == 0)
            return ch__dataset_fail(d,
                                    "component %d is a scalar and has no rows; add a batch "
                                    "(ch_dataset_batch)",
                                    i);
    return CH_OK;
}

/* ---- unbatch ---- */

/* Computes the spec of part i in an element of a single row. The part loses its first axis,
 * unless it is ragged values: then the axis stays with an unknown size, and the name loses
 * "/values". The new name is allocated in the arena. */
static ch_status row_spec(const ch_dataset *in, int i, ch_arena *a, ch_tensor_spec *out)
{
    ch_tensor_spec spec = in->spec[i];
    char          *name;
    size_t         stem;

    if (ch__rows_splits_of(in, i) < 0) {
        spec.shape = ch_shape_make(spec.shape.rank - 1, in->spec[i].shape.dim + 1);
        *out = spec;
        return CH_OK;
    }
    stem = (size_t)(strrchr(spec.name, '/') - spec.name);
    name = ch__arena_alloc(a, stem + 1);
    if (name == NULL)
        return ch__fail_memory("unbatch");
    memcpy(name, spec.name, stem);
    name[stem] = '\0';
    /* A name of digits alone means that the component has no name. */
    spec.name = strspn(name, "0123456789") < stem ? name : NULL;
    spec.shape.dim[0] = -1;
    *out = spec;
    return CH_OK;
}

static ch_status unbatch_infer(ch_dataset *d)
{
    const ch_dataset *in = d->in[0];
    ch_status         rc = infer_rows(d);
    int64_t           rows = rc == CH_OK ? ch__rows_known(in) : -1;
    int               n = 0, at = 0;
    ch_arena          names = {0};

    for (int i = 0; i < in->n_parts; i++)
        n += ch__rows_values_of(in, i) < 0;
    if (rc == CH_OK)
        rc = ch__dataset_parts(d, n);
    for (int i = 0; i < in->n_parts && rc == CH_OK; i++) {
        ch_tensor_spec spec;

        if (ch__rows_values_of(in, i) < 0 && (rc = row_spec(in, i, &names, &spec)) == CH_OK)
            rc = ch__dataset_set_part(d, at++, &spec);
    }
    ch__arena_drop(&names);
    d->cardinality = in->cardinality;
    if (in->cardinality > 0 &&
        (rows < 0 || !ch__mul_size(rows, in->cardinality, &d->cardinality)))
        d->cardinality = CH_UNKNOWN;
    return rc;
}

/* Creates an element of row r->at without the axis of rows, and advances r->at. */
static ch_status one_row(rowing *r, ch_element **out)
{
    const ch_dataset *d = r->base.dataset->in[0];
    const ch_element *w = r->whole;
    ch_element       *e = ch__element_new(r->base.dataset->n_parts, 1, 0);
    int               at = 0;

    if (e == NULL)
        return ch__fail_memory(r->base.stage->name);
    for (int i = 0; i < w->n; i++) {
        int            splits = ch__rows_splits_of(d, i);
        const ch_part *s = splits >= 0 ? &w->part[splits] : NULL;

        if (ch__rows_values_of(d, i) >= 0)
            continue;
        if (s != NULL) {
            e->part[at] =
                cut(&w->part[i], ch__row_split(s, r->at), ch__row_split(s, r->at + 1));
        } else {
            e->part[at] = cut(&w->part[i], r->at, r->at + 1);
            e->part[at].shape =
                ch_shape_make(w->part[i].shape.rank - 1, w->part[i].shape.dim + 1);
        }
        at++;
    }
    e->owner[0] = ch__buffer_ref(r->keeper);
    r->at++;
    *out = e;
    return CH_OK;
}

static ch_status unbatch_next(ch_cursor *c, ch_element **out)
{
    rowing *r = (rowing *)c;

    while (r->whole == NULL || r->at == r->n) {
        ch_status rc = rows_next(r);

        if (rc != CH_OK || r->whole == NULL)
            return rc;
    }
    return one_row(r, out);
}

const ch_stage ch__stage_unbatch = {
    .name = "unbatch",
    .version = 1,
    .traits = CH_DIVIDES,
    .n_in = 1,
    .cursor_bytes = sizeof(rowing),
    .infer = unbatch_infer,
    .open = ch__open_nothing,
    .next = unbatch_next,
    .rewind = rows_rewind,
    .save = rows_save_all,
    .load = rows_load_all,
    .close = rows_close,
};

ch_dataset *ch_dataset_unbatch(ch_dataset *d)
{
    return ch__dataset_new(&ch__stage_unbatch, &(ch_dataset_make){.n_in = 1, .in = &d});
}

/* ---- rebatch ---- */

typedef struct rebatching {
    rowing         rows;
    int            size;   /* index in `sizes` of the current batch */
    int64_t        filled; /* rows collected for the current batch */
    ch_elements    pieces; /* the collected rows */
    ch_block_pool *pool;   /* memory of the batches */
} rebatching;

/* Returns the cardinality. It is known if there is a single size and all input batches have the
 * same number of rows. */
static int64_t rebatch_count(const ch_dataset *in, const Cohort__Rebatch *a)
{
    int64_t rows = ch__rows_known(in), all;

    if (in->cardinality == CH_INFINITE)
        return rows == 0 ? CH_UNKNOWN : CH_INFINITE;
    if (a->n_sizes != 1 || in->cardinality < 0 || rows < 0 ||
        !ch__mul_size(rows, in->cardinality, &all))
        return CH_UNKNOWN;
    return ch__rows_batches(all, a->sizes[0], a->drop_remainder);
}

static ch_status rebatch_infer(ch_dataset *d)
{
    const Cohort__Rebatch *a = CH_ATTRS_OF(d, Cohort__Rebatch);
    ch_status              rc = infer_rows(d);
    int64_t                rows = a->n_sizes > 0 ? a->sizes[0] : -1, sum = 0;

    if (rc != CH_OK)
        return rc;
    for (size_t i = 0; i < a->n_sizes; i++) {
        if (a->sizes[i] < 0 || a->sizes[i] > INT32_MAX)
            return ch__dataset_fail(d, "a size is out of range (got %lld, want 0 or more)",
                                    (long long)a->sizes[i]);
        rows = a->sizes[i] == rows ? rows : -1;
        sum += a->sizes[i];
    }
    if (sum == 0)
        return ch__dataset_fail(d, "sizes: at least one must be above 0");
    rc = ch__dataset_like(d, d->in[0]);
    if (rc == CH_OK)
        ch__rows_set(d, a->drop_remainder ? rows : -1);
    d->same_rows = true;
    d->cardinality = rebatch_count(d->in[0], a);
    return rc;
}

static ch_status rebatch_open(ch_cursor *c)
{
    return ch__block_pool_new(&((rebatching *)c)->pool);
}

static void drop_pieces(rebatching *x)
{
    ch__elements_empty(&x->pieces);
    x->filled = 0;
}

/* Adds up to `want` rows of the current element to the pieces. */
static ch_status add_piece(rebatching *x, int64_t want)
{
    int64_t     left = x->rows.n - x->rows.at, count = want < left ? want : left;
    ch_element *piece = NULL;
    ch_status   rc = rows_piece(&x->rows, count, &piece);

    if (rc == CH_OK && (rc = ch__elements_add(&x->pieces, piece, "rebatch")) != CH_OK)
        x->rows.at -= count; /* these rows are returned later */
    x->filled += rc == CH_OK ? count : 0;
    return rc;
}

/* Joins the pieces into a batch. A single piece is returned as it is, without a copy. */
static ch_status join_pieces(rebatching *x, ch_element **out)
{
    ch_status rc = CH_OK;

    if (x->pieces.n == 1) {
        *out = x->pieces.at[0];
        x->pieces.n = 0;
    } else {
        rc = ch__rows_join(x->rows.base.dataset, &(ch_rows_how){.kind = CH_ROWS_APPEND},
                           x->pieces.n, x->pieces.at, x->pool, out);
    }
    drop_pieces(x);
    return rc;
}

static ch_status rebatch_next(ch_cursor *c, ch_element **out)
{
    const Cohort__Rebatch *a = CH_ATTRS(c, Cohort__Rebatch);
    rebatching            *x = (rebatching *)c;
    int64_t                want = a->sizes[x->size];
    ch_status              rc;

    while (x->filled < want || x->pieces.n == 0) {
        if (x->rows.whole == NULL || (x->rows.at == x->rows.n && want > 0)) {
            rc = rows_next(&x->rows);
            if (rc != CH_OK)
                return rc;
            if (x->rows.whole == NULL)
                break;
            if (x->rows.n == 0)
                continue;
        }
        if ((rc = add_piece(x, want - x->filled)) != CH_OK)
            return rc;
        if (want == 0)
            break;
    }
    if (x->pieces.n == 0 || (x->filled < want && a->drop_remainder)) {
        drop_pieces(x);
        return CH_OK;
    }
    x->size = (x->size + 1) % (int)a->n_sizes;
    return join_pieces(x, out);
}

static ch_status rebatch_rewind(ch_cursor *c)
{
    drop_pieces((rebatching *)c);
    ((rebatching *)c)->size = 0;
    return rows_rewind(c);
}

static void rebatch_save(ch_cursor *c, ch_saver *s)
{
    rebatching *x = (rebatching *)c;

    ch__save_int(s, x->size);
    ch__save_elements(s, &x->pieces);
    rows_save_all(c, s);
}

static ch_status rebatch_load(ch_cursor *c, ch_loader *l)
{
    rebatching *x = (rebatching *)c;
    ch_status   rc;

    x->size = (int)ch__load_int(l, 0, (int64_t)CH_ATTRS(c, Cohort__Rebatch)->n_sizes - 1);
    rc = ch__load_elements(l, INT32_MAX, c->dataset->in[0], &x->pieces);
    for (int i = 0; i < x->pieces.n && rc == CH_OK; i++) {
        int64_t rows = 0;

        rc = ch__rows_count(c->dataset->in[0], x->pieces.at[i], "rebatch", &rows);
        x->filled += rows;
    }
    return rc == CH_OK ? rows_load_all(c, l) : rc;
}

static void rebatch_close(ch_cursor *c)
{
    rebatching *x = (rebatching *)c;

    ch__elements_drop(&x->pieces);
    ch__block_pool_unref(x->pool);
    rows_close(c);
}

const ch_stage ch__stage_rebatch = {
    .name = "rebatch",
    .version = 1,
    .traits = CH_DIVIDES,
    .n_in = 1,
    .attrs = &cohort__rebatch__descriptor,
    .cursor_bytes = sizeof(rebatching),
    .infer = rebatch_infer,
    .open = rebatch_open,
    .next = rebatch_next,
    .rewind = rebatch_rewind,
    .save = rebatch_save,
    .load = rebatch_load,
    .close = rebatch_close,
};

ch_dataset *ch_dataset_rebatch(ch_dataset *d, int n, const int64_t *size,
                               const ch_batch_options *opt)
{
    Cohort__Rebatch a = COHORT__REBATCH__INIT;
    ch_arena        arena = {0};
    ch_status       rc = CH_OK;

    a.n_sizes = n > 0 && size != NULL ? (size_t)n : 0;
    a.sizes = ch__arena_copy(&arena, size, a.n_sizes * sizeof(*size));
    a.drop_remainder = opt != NULL && opt->drop_remainder;
    if (a.sizes == NULL && a.n_sizes > 0)
        rc = ch__fail_memory("rebatch");
    d = ch__dataset_new(&ch__stage_rebatch,
                        &(ch_dataset_make){.rc = rc, .attrs = &a.base, .n_in = 1, .in = &d});
    ch__arena_drop(&arena);
    return d;
}

/* ---- split ----
 *
 * Cuts each batch into n pieces, one for each replica of the job. A piece never has rows of two
 * batches.
 *
 * Sizes: if the nominal batch size B is known, the pieces of a full batch have fixed sizes; the
 * first B mod n pieces have one row more. A short batch fills these pieces in order. If B is 0,
 * each batch is cut evenly.
 *
 * A worker that reads all the data (`all` is false) returns only the pieces of its replicas:
 * first to first + count - 1. A worker that reads its own part of the data (`all` is true)
 * returns all pieces. Its sizes begin with the size of piece `first` (spec 5.3.3), so that a
 * step of all workers together has B rows. For a short batch it returns pieces up to the last
 * group of `count` pieces that has rows. */

enum { CH_MAX_PIECES = 1 << 20 };

typedef struct splitting {
    rowing rows;
    int    piece; /* pieces of the current batch returned so far */
} splitting;

static ch_status split_infer(ch_dataset *d)
{
    const Cohort__Split *a = CH_ATTRS_OF(d, Cohort__Split);
    ch_status            rc = infer_rows(d);
    int64_t              rows = -1;

    if (rc != CH_OK)
        return rc;
    if (a->n < 1 || a->n > CH_MAX_PIECES || a->count < 1 ||
        a->first + (uint64_t)a->count > a->n || a->n % a->count != 0 || a->batch < 0)
        return ch__dataset_fail(d, "invalid split: pieces %u to %u of %u, batches of %lld rows",
                                a->first, a->first + a->count, a->n, (long long)a->batch);
    rc = ch__dataset_like(d, d->in[0]);
    if (rc == CH_OK && a->batch > 0 && ch__rows_known(d) == a->batch && a->batch % a->n == 0)
        rows = a->batch / a->n;
    if (rc == CH_OK)
        ch__rows_set(d, rows);
    d->same_rows = true;
    if (d->cardinality >= 0 &&
        (a->all || !ch__mul_size(d->cardinality, a->count, &d->cardinality)))
        d->cardinality = CH_UNKNOWN;
    return rc;
}

/* Returns the rows of piece i of a batch of `rows` rows. A batch above the nominal size is cut
 * evenly, so that no row is lost. */
static int64_t piece_size(const Cohort__Split *a, int64_t rows, int64_t i)
{
    int64_t of = a->batch > rows ? a->batch : rows;

    return of / a->n + (i % a->n < of % a->n);
}

/* Returns true if the current batch has no more pieces for this worker. */
static bool is_done(const splitting *x, const Cohort__Split *a)
{
    if (!a->all)
        return x->piece == (int)a->count;
    return x->piece == (int)a->n || (x->rows.at == x->rows.n && x->piece % (int)a->count == 0 &&
                                     (x->piece > 0 || x->rows.n == 0));
}

/* Starts a batch. A worker that reads all the data skips the pieces of the workers before
 * it. */
static void skip_to_first(splitting *x, const Cohort__Split *a)
{
    int64_t before = 0;

    x->piece = 0;
    for (uint32_t i = 0; !a->all && i < a->first; i++)
        before += piece_size(a, x->rows.n, i);
    x->rows.at = before < x->rows.n ? before : x->rows.n;
}

bool ch__split_is_between(const ch_cursor *c)
{
    const splitting *x = (const splitting *)c;

    return x->rows.whole == NULL || is_done(x, CH_ATTRS(c, Cohort__Split));
}

/* If there is no memory for a piece, the next call returns the same piece. */
static ch_status split_next(ch_cursor *c, ch_element **out)
{
    const Cohort__Split *a = CH_ATTRS(c, Cohort__Split);
    splitting           *x = (splitting *)c;
    int64_t              size, left;
    ch_status            rc;

    while (ch__split_is_between(c)) {
        rc = rows_next(&x->rows);
        if (rc != CH_OK || x->rows.whole == NULL)
            return rc;
        skip_to_first(x, a);
    }
    size = piece_size(a, x->rows.n, (int64_t)a->first + x->piece);
    left = x->rows.n - x->rows.at;
    rc = rows_piece(&x->rows, size < left ? size : left, out);
    if (rc != CH_OK)
        return ch__error_between(rc);
    x->piece++;
    return CH_OK;
}

static ch_status split_rewind(ch_cursor *c)
{
    ((splitting *)c)->piece = 0;
    return rows_rewind(c);
}

static void split_save(ch_cursor *c, ch_saver *s)
{
    const splitting *x = (const splitting *)c;
    const rowing     none = {.whole = NULL};
    bool             is_between = ch__split_is_between(c);

    ch__save_int(s, is_between ? 0 : x->piece);
    rows_save(is_between ? &none : &x->rows, s);
    ch__save_inputs(c, s);
}

/* Makes the rows of the current batch that are left a batch of their own, and begins it. */
static ch_status begin_rest(splitting *x, const Cohort__Split *a)
{
    ch_element *rest = NULL;
    ch_status   rc = rows_piece(&x->rows, x->rows.n - x->rows.at, &rest);

    rows_drop(&x->rows); /* `rest` references the memory of the batch */
    if (rc == CH_OK)
        rc = rows_of(&x->rows, rest);
    if (rc == CH_OK)
        skip_to_first(x, a);
    return rc;
}

/* Loads a position inside a batch. If another number of replicas has begun the batch, the rows
 * that are left are divided anew. */
static ch_status split_load(ch_cursor *c, ch_loader *l)
{
    const Cohort__Split *a = CH_ATTRS(c, Cohort__Split);
    splitting           *x = (splitting *)c;
    int                  piece = (int)ch__load_int(l, 0, CH_MAX_PIECES);
    ch_status            rc = rows_load(&x->rows, l);
    int64_t              at = x->rows.at;

    if (rc == CH_OK && x->rows.whole != NULL) {
        skip_to_first(x, a);
        for (; x->piece < piece && !is_done(x, a); x->piece++)
            x->rows.at =
                ch__min(x->rows.n, x->rows.at + piece_size(a, x->rows.n, a->first + x->piece));
        bool is_other = x->piece != piece || x->rows.at != at;

        x->rows.at = at;
        if (is_other && a->count < a->n)
            rc = ch__fail(CH_INVALID_ARGUMENT,
                          "restore: the position is inside a batch that other workers have "
                          "divided in another way; save the position between two batches");
        else if (is_other)
            rc = begin_rest(x, a);
    }
    return rc == CH_OK ? ch__load_inputs(c, l) : rc;
}

const ch_stage ch__stage_split = {
    .name = "split",
    .version = 1,
    .n_in = 1,
    .attrs = &cohort__split__descriptor,
    .cursor_bytes = sizeof(splitting),
    .infer = split_infer,
    .open = ch__open_nothing,
    .next = split_next,
    .rewind = split_rewind,
    .save = split_save,
    .load = split_load,
    .close = rows_close,
};
