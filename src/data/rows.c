/* data/rows.c -- joins elements into a batch, and finds the rows of a batch.
 *
 * ch__rows_join works in two passes. `measure` computes the shape of each part of the batch and
 * reserves bytes for it; `copy_rows` copies the data. The struct `joining` holds the state of a
 * join. Parts of fixed size are copied row by row, not part by part, because the parts of an
 * element are close together in memory. Callers: batch.c, pad.c and rebatch.c.
 *
 * Invariants:
 *   1. All parts of a batch are in a single piece of memory, each aligned to CH_ALIGN: in the
 *      room of the element if the batch is small, else in a block of the pool.
 *   2. Values of a ragged component have readable memory behind them (ch_part.room), so that a
 *      step can use them without a copy.
 *   3. Row splits may be untrusted; ch__rows_count checks them before they are used.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/rows.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/prefetch.h"
#include "tensor/ragged.h"

enum {
    PREFETCH_ROWS = 2,    /* rows between the prefetch of a row and its copy */
    PREFETCH_BYTES = 512, /* bytes prefetched; the CPU's own prefetcher handles the rest */
    SMALL = 64 << 10      /* largest batch, in bytes, that is stored in the element's room */
};

/* ---- specs ---- */

static bool is_ragged(const ch_tensor_spec *spec)
{
    return spec->shape.rank > 0 && spec->shape.dim[0] == -1;
}

/* Sets part `at`. Its name is the name of `like` with `end` appended; NULL if `like` has
 * none. */
static ch_status named_part(ch_dataset *d, int at, const ch_tensor_spec *like, const char *end,
                            ch_dtype dtype, ch_shape shape)
{
    size_t    size = like->name != NULL ? strlen(like->name) + strlen(end) + 1 : 0;
    char     *name = like->name != NULL ? ch__malloc(size) : NULL;
    ch_status rc;

    if (like->name != NULL && name == NULL)
        return ch__fail_memory(d->stage->name);
    if (name != NULL)
        snprintf(name, size, "%s%s", like->name, end);
    rc = ch__dataset_set_part(d, at, &(ch_tensor_spec){name, dtype, shape});
    ch__free(name);
    return rc;
}

/* Returns the shape with a new axis 0 of size `rows`. */
static ch_shape with_rows(int64_t rows, ch_shape s)
{
    ch_shape out = {.rank = s.rank + 1};

    out.dim[0] = rows;
    for (int i = 0; i < s.rank && i + 1 < CH_MAX_RANK; i++)
        out.dim[i + 1] = s.dim[i];
    return out;
}

/* Sets parts `at` and `at` + 1 to the values and row splits of part `part` of `in`. A part
 * without a name gets its number as name, because the two parts are found by their names. */
static ch_status ragged_parts(ch_dataset *d, int at, const ch_dataset *in, int part,
                              int64_t rows)
{
    ch_shape       splits = ch_shape_make(1, &(int64_t){rows < 0 ? -1 : rows + 1});
    ch_tensor_spec spec = in->spec[part];
    char           number[16];
    ch_status      rc;

    for (int i = 1; i < spec.shape.rank; i++)
        if (spec.shape.dim[i] == -1)
            return ch__dataset_fail(d,
                                    "a ragged batch: the size of axis %d of a component is not "
                                    "fixed; only axis 0 may vary",
                                    i);
    snprintf(number, sizeof(number), "%d", part);
    spec.name = spec.name != NULL ? spec.name : number;
    rc = named_part(d, at, &spec, CH_RAGGED_VALUES, spec.dtype, spec.shape);
    return rc == CH_OK ? named_part(d, at + 1, &spec, CH_RAGGED_SPLITS, CH_I64, splits) : rc;
}

ch_status ch__rows_spec(ch_dataset *d, const ch_dataset *in, int64_t rows, ch_rows_kind kind)
{
    int       n = in->n_parts, at = 0;
    ch_status rc;

    for (int i = 0; i < in->n_parts && kind == CH_ROWS_RAGGED; i++)
        n += is_ragged(&in->spec[i]);
    rc = ch__dataset_parts(d, n);
    for (int i = 0; i < in->n_parts && rc == CH_OK; i++) {
        const ch_tensor_spec *spec = &in->spec[i];

        if (kind == CH_ROWS_RAGGED && is_ragged(spec)) {
            rc = ragged_parts(d, at, in, i, rows);
            at += 2;
        } else if (spec->shape.rank == CH_MAX_RANK) {
            return ch__dataset_fail(
                d, "component %d has %d axes, the maximum; a batch needs one axis more", i,
                CH_MAX_RANK);
        } else {
            rc = named_part(d, at++, spec, "", spec->dtype, with_rows(rows, spec->shape));
        }
    }
    return rc;
}

/* ---- ragged parts ---- */

static bool may_be_pair(const ch_dataset *d, int values, int splits)
{
    return d->spec[values].shape.rank > 0 && d->spec[splits].shape.rank == 1 &&
           d->spec[splits].dtype == CH_I64;
}

int ch__rows_splits_of(const ch_dataset *d, int values)
{
    for (int i = 0; i < d->n_parts; i++)
        if (ch__ragged_is_pair(d->spec[values].name, d->spec[i].name))
            return may_be_pair(d, values, i) ? i : -1;
    return -1;
}

int ch__rows_values_of(const ch_dataset *d, int splits)
{
    for (int i = 0; i < d->n_parts; i++)
        if (ch__ragged_is_pair(d->spec[i].name, d->spec[splits].name))
            return may_be_pair(d, i, splits) ? i : -1;
    return -1;
}

int64_t ch__rows_known(const ch_dataset *d)
{
    int64_t rows = -1;

    for (int i = 0; i < d->n_parts; i++) {
        int64_t own = d->spec[i].shape.rank > 0 ? d->spec[i].shape.dim[0] : -1;

        if (ch__rows_splits_of(d, i) >= 0)
            continue;
        if (own < 0)
            return -1;
        own -= ch__rows_values_of(d, i) >= 0;
        if (rows >= 0 && own != rows)
            return -2;
        rows = own;
    }
    return rows;
}

void ch__rows_set(ch_dataset *d, int64_t rows)
{
    for (int i = 0; i < d->n_parts; i++)
        if (ch__rows_splits_of(d, i) >= 0)
            d->spec[i].shape.dim[0] = -1;
        else
            d->spec[i].shape.dim[0] = rows + (rows >= 0 && ch__rows_values_of(d, i) >= 0);
}

/* Returns true if row splits, which may be untrusted, begin with 0, never fall and end with
 * n_values. */
static bool are_splits(const ch_part *splits, int64_t n_values)
{
    int64_t n = splits->shape.dim[0], at = 0;

    if (n < 1 || ch__row_split(splits, 0) != 0 || ch__row_split(splits, n - 1) != n_values)
        return false;
    for (int64_t r = 1; r < n; r++) {
        int64_t next = ch__row_split(splits, r);

        if (next < at)
            return false;
        at = next;
    }
    return true;
}

ch_status ch__rows_count(const ch_dataset *d, const ch_element *e, const char *stage,
                         int64_t *out)
{
    int64_t rows = -1;
    int     first = 0; /* the first part that has rows */

    for (int i = 0; i < e->n; i++) {
        int     values = ch__rows_values_of(d, i);
        int64_t own = e->part[i].shape.dim[0] - (values >= 0);

        if (ch__rows_splits_of(d, i) >= 0)
            continue;
        if (values >= 0 && !are_splits(&e->part[i], e->part[values].shape.dim[0]))
            return ch__fail(
                CH_INVALID_ARGUMENT,
                "%s: component %d, \"%s\", is not a valid list of row splits for %lld "
                "values; it must begin with 0, never fall, and end with their number",
                stage, i, d->spec[i].name, (long long)e->part[values].shape.dim[0]);
        if (rows >= 0 && own != rows)
            return ch__fail(CH_INVALID_ARGUMENT,
                            "%s: components %d and %d of an element have %lld and %lld rows",
                            stage, first, i, (long long)rows, (long long)own);
        first = rows < 0 ? i : first;
        rows = own;
    }
    *out = rows;
    return CH_OK;
}

/* ---- sizes ---- */

/* The state of a join. */
typedef struct joining {
    const ch_dataset  *d; /* the dataset of the batch */
    const ch_rows_how *how;
    int                n;                        /* elements to join */
    ch_element *const *row;                      /* n; borrowed */
    ch_element        *out;                      /* the batch */
    size_t             used;                     /* bytes reserved so far */
    size_t             offset[2 * CH_MAX_PARTS]; /* of each part of the batch, in bytes */
} joining;

static ch_status unequal(const joining *j, int part, int row)
{
    const ch_part *a = &j->row[0]->part[part], *b = &j->row[row]->part[part];

    return ch__dataset_fail(
        j->d,
        "component %d is %s in the first element of a batch and %s in "
        "element %d; use ch_dataset_padded_batch, or ch_batch_options.ragged",
        part, ch__label(a->dtype, a->shape).text, ch__label(b->dtype, b->shape).text, row);
}

static ch_status equal_shape(const joining *j, int part, ch_shape *out)
{
    for (int r = 1; r < j->n; r++)
        if (!ch_shape_equal(j->row[r]->part[part].shape, j->row[0]->part[part].shape))
            return unequal(j, part, r);
    *out = with_rows(j->n, j->row[0]->part[part].shape);
    return CH_OK;
}

/* Computes the shape of concatenated values: the first sizes are added; the others must be
 * equal. */
static ch_status ragged_shape(const joining *j, int part, ch_shape *out)
{
    ch_shape s = j->row[0]->part[part].shape;

    for (int r = 1; r < j->n; r++) {
        ch_shape other = j->row[r]->part[part].shape;

        s.dim[0] += other.dim[0];
        other.dim[0] = s.dim[0];
        if (!ch_shape_equal(s, other))
            return unequal(j, part, r);
    }
    *out = s;
    return CH_OK;
}

static ch_status padded_shape(const joining *j, int part, ch_shape *out)
{
    ch_shape most = j->row[0]->part[part].shape;

    for (int r = 1; r < j->n; r++)
        for (int i = 0; i < most.rank; i++) {
            int64_t size = j->row[r]->part[part].shape.dim[i];

            most.dim[i] = size > most.dim[i] ? size : most.dim[i];
        }
    for (int i = 0; j->how->shape != NULL && i < most.rank; i++) {
        int64_t want = j->how->shape[part].dim[i];

        if (want >= 0 && most.dim[i] > want)
            return ch__dataset_fail(
                j->d,
                "component %d of an element has size %lld on axis %d, above the padded "
                "size %lld",
                part, (long long)most.dim[i], i, (long long)want);
        most.dim[i] = want >= 0 ? want : most.dim[i];
    }
    *out = with_rows(j->n, most);
    return CH_OK;
}

/* Returns the bytes to reserve behind the values of a ragged component, so that a step can use
 * them without a copy (tensor/ragged.h). */
static size_t room_behind(ch_dtype dtype, ch_shape shape)
{
    int64_t row = ch_shape_count(ch_shape_make(shape.rank - 1, shape.dim + 1)), bytes = 0;
    int64_t more = ch__ragged_allocated(shape.dim[0]) - shape.dim[0];

    if (dtype == CH_STR || !ch__mul_size(row, more, &bytes) ||
        !ch__mul_size(bytes, (int64_t)ch_dtype_bytes(dtype), &bytes))
        return 0;
    return (size_t)bytes;
}

/* Reserves bytes for part `at` of the batch. The memory is not allocated yet, so only the
 * offset is set. `held` is the size of its strings, `room` the size of the readable memory
 * behind it. */
static ch_status reserve(joining *j, int at, ch_dtype dtype, ch_shape shape, size_t held,
                         size_t room)
{
    int64_t   count, bytes;
    ch_status rc = ch__tensor_size(dtype, shape, &count, &bytes);

    if (rc != CH_OK)
        return rc;
    j->out->part[at] = (ch_part){.dtype = dtype, .shape = shape, .room = room};
    j->offset[at] = j->used;
    j->used += ((size_t)bytes + held + room + CH_ALIGN - 1) & ~(size_t)(CH_ALIGN - 1);
    return CH_OK;
}

/* Returns the sum of the lengths of all strings of a part; 0 if the part has no strings. */
static size_t held_by_strings(const joining *j, int part)
{
    size_t held = 0;

    if (j->row[0]->part[part].dtype == CH_STR)
        for (int r = 0; r < j->n; r++) {
            const ch_part *p = &j->row[r]->part[part];

            for (int64_t i = 0; i < ch_shape_count(p->shape); i++)
                held += ((const ch_str *)p->data)[i].size;
        }
    return held;
}

/* Returns true if a part of the input becomes values and row splits. */
static bool splits(const joining *j, int part)
{
    return j->how->kind == CH_ROWS_RAGGED && is_ragged(&j->d->in[0]->spec[part]);
}

/* Returns true if the part is row splits that are concatenated. */
static bool appends_splits(const joining *j, int part)
{
    return j->how->kind == CH_ROWS_APPEND && ch__rows_values_of(j->d, part) >= 0;
}

/* Returns true if the part is values of a ragged component that are concatenated. */
static bool appends_values(const joining *j, int part)
{
    return j->how->kind == CH_ROWS_APPEND && ch__rows_splits_of(j->d, part) >= 0;
}

/* Computes the shapes and offsets of all parts of the batch. */
static ch_status measure(joining *j)
{
    int       at = 0;
    ch_status rc = CH_OK;

    for (int i = 0; i < j->row[0]->n && rc == CH_OK; i++) {
        ch_shape shape = {0};
        ch_dtype dtype = j->row[0]->part[i].dtype;
        bool     is_split = splits(j, i);
        bool     is_flat = is_split || appends_values(j, i);

        if (j->how->kind == CH_ROWS_PADDED)
            rc = padded_shape(j, i, &shape);
        else if (is_split || j->how->kind == CH_ROWS_APPEND)
            rc = ragged_shape(j, i, &shape);
        else
            rc = equal_shape(j, i, &shape);
        if (appends_splits(j, i)) /* the last split of a piece is the first split of the next */
            shape.dim[0] -= j->n - 1;
        if (rc == CH_OK)
            rc = reserve(j, at++, dtype, shape, held_by_strings(j, i),
                         is_flat ? room_behind(dtype, shape) : 0);
        if (rc == CH_OK && is_split)
            rc = reserve(j, at++, CH_I64, ch_shape_make(1, &(int64_t){j->n + 1}), 0, 0);
    }
    return rc;
}

/* ---- copies ---- */

/* Copies the strings of all rows. Their bytes are stored behind the array of `count` ch_str. */
static void copy_strings(const joining *j, int part, char *to, size_t count)
{
    ch_str *s = (ch_str *)(void *)to;
    char   *text = to + count * sizeof(*s);

    for (int r = 0; r < j->n; r++) {
        const ch_part *p = &j->row[r]->part[part];

        for (int64_t i = 0; i < ch_shape_count(p->shape); i++, s++) {
            *s = ((const ch_str *)p->data)[i];
            if (s->size > 0)
                memcpy(text, s->data, s->size);
            s->data = text;
            text += s->size;
        }
    }
}

/* Writes row splits: the sums of the rows' first sizes. */
static void copy_splits(const joining *j, int part, char *to)
{
    int64_t sum = 0;

    for (int r = 0; r <= j->n; r++) {
        memcpy(to + (size_t)r * sizeof(sum), &sum, sizeof(sum));
        sum += r < j->n ? j->row[r]->part[part].shape.dim[0] : 0;
    }
}

static void fill_with(const ch_part *p, char *to, double value)
{
    size_t size = ch_dtype_bytes(p->dtype), n = (size_t)ch_shape_count(p->shape);

    memset(to, 0, n * size);
    for (size_t i = 0; value != 0 && i < n; i++)
        ch__store(p->dtype, to + i * size, value);
}

/* Fills the part with the padding value, and copies each row to the beginning of its axes.
 * Strings are padded with ""; their bytes are stored behind the array. */
static void copy_padded(const joining *j, int part, const ch_part *whole, char *to)
{
    int64_t stride[CH_MAX_RANK], own[CH_MAX_RANK];
    size_t  size = ch_dtype_bytes(whole->dtype);
    bool    is_text = whole->dtype == CH_STR;
    char   *text = to + (size_t)ch_shape_count(whole->shape) * size;

    if (is_text)
        memset(to, 0, (size_t)ch_shape_count(whole->shape) * size);
    else
        fill_with(whole, to, j->how->value != NULL ? j->how->value[part] : 0);
    ch__strides(whole->shape, stride);
    for (int r = 0; r < j->n; r++) {
        const ch_part *p = &j->row[r]->part[part];

        ch__strides(p->shape, own);
        ch__copy_strided(p->dtype, p->shape, p->data, own, to + (size_t)(r * stride[0]) * size,
                         stride + 1);
    }
    for (int64_t i = 0; is_text && i < ch_shape_count(whole->shape); i++) {
        ch_str *s = (ch_str *)(void *)to + i;

        if (s->size > 0)
            memcpy(text, s->data, s->size);
        s->data = text;
        text += s->size;
    }
}

/* Copies all parts of fixed size, row by row. */
static void copy_plain(const joining *j, char *base)
{
    for (int r = 0; r < j->n; r++) {
        const ch_element *e = j->row[r];
        int               at = 0;

        if (r + PREFETCH_ROWS < j->n)
            ch__prefetch_read(j->row[r + PREFETCH_ROWS]->part[0].data, PREFETCH_BYTES);
        for (int i = 0; i < e->n; i++, at++) {
            const ch_part *p = &e->part[i];
            bool           is_split = splits(j, i);
            size_t         bytes;

            at += is_split;
            if (is_split || p->dtype == CH_STR)
                continue;
            bytes = (size_t)ch_shape_count(p->shape) * ch_dtype_bytes(p->dtype);
            if (bytes > 0)
                memcpy(base + j->offset[at] + (size_t)r * bytes, p->data, bytes);
        }
    }
}

/* Copies the values of all rows, which may have different numbers of values. */
static void copy_values(const joining *j, int part, char *to)
{
    for (int r = 0; r < j->n; r++) {
        const ch_part *p = &j->row[r]->part[part];
        size_t         bytes = (size_t)ch_shape_count(p->shape) * ch_dtype_bytes(p->dtype);

        if (bytes > 0)
            memcpy(to, p->data, bytes);
        to += bytes;
    }
}

/* Concatenates row splits. The splits of each piece continue from the end of the piece
 * before. */
static void append_splits(const joining *j, int part, char *to)
{
    int64_t sum = 0;

    memcpy(to, &sum, sizeof(sum));
    for (int r = 0; r < j->n; r++) {
        const ch_part *p = &j->row[r]->part[part];
        int64_t        before = sum;

        for (int64_t i = 1; i < p->shape.dim[0]; i++) {
            sum = before + ch__row_split(p, i);
            memcpy(to += sizeof(sum), &sum, sizeof(sum));
        }
    }
}

/* Copies all parts to `base`, and sets the data pointers of the batch. */
static void copy_rows(joining *j, char *base)
{
    int at = 0;

    if (j->how->kind == CH_ROWS_EQUAL || j->how->kind == CH_ROWS_RAGGED)
        copy_plain(j, base);
    for (int i = 0; i < j->row[0]->n; i++, at++) {
        ch_part *p = &j->out->part[at];
        char    *to = base + j->offset[at];

        if (j->how->kind == CH_ROWS_PADDED)
            copy_padded(j, i, p, to);
        else if (p->dtype == CH_STR)
            copy_strings(j, i, to, (size_t)ch_shape_count(p->shape));
        else if (appends_splits(j, i))
            append_splits(j, i, to);
        else if (splits(j, i) || j->how->kind == CH_ROWS_APPEND)
            copy_values(j, i, to);
        if (splits(j, i))
            copy_splits(j, i, base + j->offset[++at]);
    }
    for (int i = 0; i < j->out->n; i++)
        j->out->part[i].data = base + j->offset[i];
}

/* Allocates the memory of the parts: in the element's room for a small batch, else a block of
 * the pool, which is reused. */
static ch_status allocate(joining *j, ch_block_pool *pool, char **base)
{
    if (j->used <= SMALL) {
        ch_element *e = ch__element_new(j->out->n, 0, j->used + CH_ALIGN);

        if (e == NULL)
            return ch__fail_memory(j->d->stage->name);
        memcpy(e->part, j->out->part, (size_t)e->n * sizeof(ch_part));
        ch__element_free(j->out);
        j->out = e;
        *base = (char *)e->room + (-(uintptr_t)e->room & (CH_ALIGN - 1));
        return CH_OK;
    }
    ch_buffer *block = ch__block_get(pool, j->used);
    j->out->owner[0] = block;
    if (block == NULL)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "%s: out of memory for a batch of %zu bytes",
                        j->d->stage->name, j->used);
    *base = block->data;
    return CH_OK;
}

ch_status ch__rows_join(const ch_dataset *d, const ch_rows_how *how, int n,
                        ch_element *const *row, ch_block_pool *pool, ch_element **out)
{
    joining   j = {.d = d, .how = how, .n = n, .row = row};
    char     *base = NULL;
    ch_status rc;

    j.out = ch__element_new(d->n_parts, 1, 0);
    if (j.out == NULL)
        return ch__fail_memory(d->stage->name);
    rc = measure(&j);
    if (rc == CH_OK)
        rc = allocate(&j, pool, &base);
    if (rc != CH_OK) {
        ch__element_free(j.out);
        return rc;
    }
    copy_rows(&j, base);
    *out = j.out;
    return CH_OK;
}

/* ---- stages that batch with a workqueue ---- */

/* Reads an input element into b->rows. Prefetches it, because an element that was in the buffer
 * of a shuffle is no longer in the CPU's cache. */
static ch_status next_row(ch_batching *b, bool *has_end)
{
    ch_element *e = NULL;
    ch_status   rc = ch__workqueue_read(&b->base, &e);

    if (rc != CH_OK)
        return rc;
    *has_end = e == NULL;
    if (e == NULL)
        return CH_OK;
    ch__prefetch_read((const char *)e, sizeof(*e) + 3 * sizeof(ch_part));
    return ch__elements_add(&b->rows, e, b->base.stage->name);
}

void ch__rows_pull(ch_batching *b, ch_data_job *job, int n, bool drop_remainder)
{
    while (b->rows.n < n && !job->has_end) {
        ch_status rc = next_row(b, &job->has_end);

        if (rc != CH_OK) {
            ch__data_job_add_error(job, ch__error_between(rc));
            return;
        }
    }
    if (drop_remainder && b->rows.n < n)
        ch__elements_empty(&b->rows);
    for (int k = 0; k < b->rows.n; k++)
        ch__data_job_add(job, b->rows.at[k]);
    b->rows.n = 0;
}

/* A job has only elements, or a single error. If a result was lost because memory was exhausted
 * (has_lost), the other rows are not a full batch: an error replaces all of them. */
void ch__rows_make(ch_batching *b, const ch_rows_how *how, ch_data_job *job)
{
    const ch_dataset *d = b->base.dataset;
    int               n = job->n;
    ch_element      **row, *whole = NULL;
    ch_status         rc;

    if (n == 0 || job->result[0].rc != CH_OK)
        return;
    row = job->has_lost ? NULL : ch__malloc((size_t)n * sizeof(ch_element *));
    for (int k = 0; row != NULL && k < n; k++)
        row[k] = job->result[k].element;
    rc = row == NULL ? ch__fail_memory(d->stage->name)
                     : ch__rows_join(d, how, n, row, b->pool, &whole);
    ch__free(row);
    for (int k = 0; k < n; k++)
        ch__job_result_drop(&job->result[k]);
    job->n = 0;
    job->has_lost = false;
    if (rc == CH_OK)
        ch__data_job_add(job, whole);
    else
        ch__data_job_add_error(job, rc);
}

ch_status ch__rows_open(ch_batching *b, const ch_workqueue_ops *ops, int size)
{
    ch_status rc = ch__block_pool_new(&b->pool);

    if (rc != CH_OK)
        return rc;
    return ch__workqueue_open(&b->base, ops,
                              &(ch_workqueue_options){.want = 1, .per_result = size});
}

ch_status ch__rows_rewind(ch_cursor *c)
{
    ch_status rc;

    ch__workqueue_pause(c->workqueue);
    ch__elements_empty(&((ch_batching *)c)->rows);
    rc = ch__workqueue_rewind(c->workqueue);
    ch__workqueue_resume(c->workqueue);
    return rc;
}

void ch__rows_save(ch_cursor *c, ch_saver *s)
{
    static const ch_elements none;
    ch_back                  input;
    bool                     is_back;

    ch__workqueue_pause(c->workqueue);
    is_back = ch__workqueue_save_back(c->workqueue, s, &input);
    ch__save_elements(s, is_back ? &none : &((ch_batching *)c)->rows);
    ch__save_input_back(c, s, input);
    ch__workqueue_resume(c->workqueue);
}

ch_status ch__rows_load(ch_cursor *c, ch_loader *l)
{
    ch_elements *rows = &((ch_batching *)c)->rows;
    ch_status    rc;

    ch__workqueue_pause(c->workqueue);
    rc = ch__workqueue_load(c->workqueue, l);
    if (rc == CH_OK)
        rc = ch__load_elements(l, INT32_MAX, c->dataset->in[0], rows);
    ch__workqueue_hold(c->workqueue, rows->n);
    if (rc == CH_OK)
        rc = ch__load_inputs(c, l);
    ch__workqueue_resume(c->workqueue);
    return rc;
}

void ch__rows_close(ch_cursor *c)
{
    ch_batching *b = (ch_batching *)c;

    ch__elements_drop(&b->rows);
    ch__block_pool_unref(b->pool);
}
