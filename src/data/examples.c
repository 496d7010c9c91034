/* data/examples.c -- the stage `parse_examples`: parses records of tf.train.Example.
 *
 * If the reader of the records has skip_bad, a record that is not a valid Example is skipped
 * and counted. An Example that does not match the schema is always an error.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/fault.h"
#include "base/mem.h"
#include "base/prefetch.h"
#include "data/format/example.h"
#include "data/iterator.h"

typedef struct parsing {
    ch_cursor          base;
    ch_example_schema *schema;
} parsing;

static ch_status feature_of(const ch_dataset *d, const Cohort__Feature *m, ch_feature *out)
{
    *out = (ch_feature){.name = m->name, .optional = m->optional != 0, .missing = m->missing};
    if (ch_dtype_parse(m->dtype, &out->dtype) != CH_OK || m->n_shape > CH_MAX_RANK)
        return ch__dataset_fail(d, "feature \"%.100s\": invalid type \"%.20s\" or rank %zu",
                                m->name, m->dtype, m->n_shape);
    out->shape = ch_shape_make((int)m->n_shape, m->shape);
    if (m->has_missing_text)
        out->missing_text = m->missing_text;
    return CH_OK;
}

/* Creates the schema of the dataset's attributes. */
static ch_status schema_of(const ch_dataset *d, ch_example_schema **out)
{
    const Cohort__Examples *a = CH_ATTRS_OF(d, Cohort__Examples);
    ch_feature             *f;
    ch_status               rc = CH_OK;

    if (a->n_features < 1 || a->n_features > CH_MAX_PARTS)
        return ch__dataset_fail(d, "%zu features, want 1 to %d", a->n_features, CH_MAX_PARTS);
    f = ch__calloc(a->n_features, sizeof(*f));
    if (f == NULL)
        return ch__fail_memory(d->stage->name);
    for (size_t i = 0; i < a->n_features && rc == CH_OK; i++)
        rc = feature_of(d, a->features[i], &f[i]);
    if (rc == CH_OK)
        rc = ch__example_schema_new((int)a->n_features, f, out);
    ch__free(f);
    return rc;
}

static ch_status examples_infer(ch_dataset *d)
{
    const ch_dataset     *in = d->in[0];
    ch_example_schema    *schema = NULL;
    const ch_tensor_spec *spec;
    ch_status             rc;
    int                   n;

    if (in->n_parts != 1 || in->spec[0].dtype != CH_STR || in->spec[0].shape.rank != 0)
        return ch__dataset_fail(d, "its input must give records, that is single strings");
    rc = schema_of(d, &schema);
    if (rc != CH_OK)
        return rc;
    n = ch__example_schema_spec(schema, &spec);
    rc = ch__dataset_set_parts(d, n, spec);
    d->cardinality = in->cardinality;
    ch__example_schema_free(schema);
    return rc;
}

/* Replaces the record in a result by the parsed element or by an error. A record that is
 * skipped leaves an empty result. */
static void parse_result(ch_cursor *c, ch_job_result *s, int64_t number)
{
    ch_element *record = s->element;
    bool        is_named = record->origin != NULL; /* then the message names the file */
    ch_status   rc;

    s->element = NULL;
    rc = ch__example_parse(((const parsing *)c)->schema, record, &s->element);
    if (rc == CH_DATA_LOSS && c->dataset->skips_bad)
        ch__cursor_skipped(c, 1);
    else if (rc != CH_OK)
        ch__job_result_fail(s,
                            is_named ? rc : ch__fail_at(rc, "record %lld", (long long)number));
}

/* Prefetches data of later records into the CPU cache, because another thread has read them and
 * has them in its cache. Prefetches first the result, later the element, then the beginning and
 * the end of the record. Parsing does not read the bytes between. */
static void prefetch_records(const ch_data_job *job, int k)
{
    enum { LATER = 24, SOON = 8, NEXT = 4, ELEMENT = 192, ENDS = 128 };
    const ch_element *e;

    if (k + LATER < job->n)
        ch__prefetch_read((const char *)&job->result[k + LATER], sizeof(job->result[0]));
    if (k + SOON < job->n)
        ch__prefetch_read((const char *)job->result[k + SOON].element, ELEMENT);
    if (k + NEXT < job->n && (e = job->result[k + NEXT].element) != NULL) {
        const ch_str *record = e->part[0].data;

        ch__prefetch_read(record->data, ENDS);
        if (record->size > ENDS)
            ch__prefetch_read(record->data + record->size - ENDS, ENDS);
    }
}

static void examples_make(ch_cursor *c, ch_data_job *job)
{
    for (int k = 0; k < job->n; k++) {
        prefetch_records(job, k);
        if (job->result[k].element != NULL)
            parse_result(c, &job->result[k], job->first + k);
    }
    if (c->dataset->skips_bad)
        ch__data_job_close_gaps(job);
}

static ch_status examples_open(ch_cursor *c)
{
    static const ch_workqueue_ops ops = {ch__workqueue_pull_input, examples_make};
    parsing                      *p = (parsing *)c;
    ch_status                     rc = schema_of(c->dataset, &p->schema);

    return rc == CH_OK ? ch__workqueue_open(
                             c, &ops, &(ch_workqueue_options){.unordered = c->it->unordered})
                       : rc;
}

static void examples_close(ch_cursor *c)
{
    ch__example_schema_free(((parsing *)c)->schema);
}

const ch_stage ch__stage_examples = {
    .name = "parse_examples",
    .version = 1,
    .traits = CH_DIVIDES | CH_ONE_BY_ONE,
    .n_in = 1,
    .attrs = &cohort__examples__descriptor,
    .cursor_bytes = sizeof(parsing),
    .infer = examples_infer,
    .open = examples_open,
    CH_QUEUED_STAGE,
    .close = examples_close,
};

/* ---- creation ---- */

/* Creates the message of a feature. The arena owns it. */

static ch_status message_of(ch_arena *a, const ch_feature *f, Cohort__Feature **out)
{
    Cohort__Feature *m = ch__arena_alloc(a, sizeof(*m));
    ch_shape         s = f->shape;

    if (f->name == NULL)
        return ch__fail(CH_INVALID_ARGUMENT, "parse_examples: a feature has no name");
    if (s.rank < 0 || s.rank > CH_MAX_RANK)
        return ch__fail(CH_INVALID_ARGUMENT,
                        "parse_examples: feature \"%.100s\" is of rank %d, want 0 to %d",
                        f->name, s.rank, CH_MAX_RANK);
    if (m == NULL)
        return ch__fail_memory("parse_examples");
    cohort__feature__init(m);
    m->name = ch__arena_strdup(a, f->name);
    m->dtype = ch__arena_strdup(a, ch_dtype_name(f->dtype));
    m->shape = ch__arena_copy(a, s.dim, sizeof(s.dim));
    m->n_shape = (size_t)s.rank;
    m->optional = f->optional;
    m->missing = f->missing;
    m->has_missing_text = f->missing_text != NULL;
    if (f->missing_text != NULL)
        m->missing_text = ch__arena_strdup(a, f->missing_text);
    *out = m;
    if (m->name == NULL || m->dtype == NULL || m->shape == NULL || m->missing_text == NULL)
        return ch__fail_memory("parse_examples");
    return CH_OK;
}

ch_dataset *ch_dataset_parse_examples(ch_dataset *d, int n, const ch_feature *feature)
{
    Cohort__Examples a = COHORT__EXAMPLES__INIT;
    ch_arena         arena = {0};
    bool             fits = n >= 0 && n <= CH_MAX_PARTS && (n == 0 || feature != NULL);
    ch_status        rc = CH_OK;

    a.features = ch__arena_alloc(&arena, ((size_t)(fits ? n : 0) + 1) * sizeof(*a.features));
    if (!fits)
        rc = ch__fail(CH_INVALID_ARGUMENT, "parse_examples: features%s (got %d, want 1 to %d)",
                      n > 0 && feature == NULL ? ": the list is NULL" : ": wrong number", n,
                      CH_MAX_PARTS);
    else if (a.features == NULL)
        rc = ch__fail_memory("parse_examples");
    for (int i = 0; i < n && rc == CH_OK; i++) {
        rc = message_of(&arena, &feature[i], &a.features[i]);
        a.n_features++;
    }
    d = ch__dataset_new(&ch__stage_examples,
                        &(ch_dataset_make){.rc = rc, .attrs = &a.base, .n_in = 1, .in = &d});
    ch__arena_drop(&arena);
    return d;
}
