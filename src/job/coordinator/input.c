/* job/coordinator/input.c -- worker inputs: which elements of which streams a step reads.
 *
 * ch_worker_input is a set of data streams, or fixed tensors for each worker (private.h). A
 * stream is read by number: a step leases the next element when it is first sent, and the
 * worker reads the element with that number (job/worker/stream.h). Any worker can read any
 * element of a stream that it has received. It begins at the position that the stream was sent
 * with. Workers send newer positions with the results of some steps, so that another worker
 * need not read from the beginning.
 *
 * Invariants:
 *   1. An element is leased to one step at a time. The step keeps the lease in every attempt,
 *      so no element is read for two steps, and no element is lost with a worker. A lease ends
 *      early only if the stream turns out to have no such element.
 *   2. The element of a step that is done or has failed is never leased again. The element of a
 *      cancelled step is returned: it is leased again before elements with larger numbers.
 *   3. No step that has not ended reads an element before `position`, and no returned element
 *      is before it. A newer position waits in `pending` until the steps that read before it
 *      are done or have failed (`n_before`).
 *   4. `returned` has room for all elements that are leased, so that no return needs memory.
 *
 * scheduler.c chooses, sends and leases in this order: ch__worker_input_choose,
 * ch__worker_input_is_sent, ch__worker_input_lease. The strategy creates worker inputs, and
 * saves and resumes them between steps, when no element is leased.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>

#include "base/mem.h"
#include "base/mutant.h"
#include "base/protobuf.h"
#include "job/coordinator/private.h"
#include "tensor/tensor.h"

/* ---- creating and freeing ---- */

static ch_status new_worker_input(ch_coord *c, ch_worker_input **out)
{
    ch_worker_input *f = ch__calloc(1, sizeof(*f));

    if (f == NULL)
        return ch__fail_memory("data for workers");
    f->refs = 1;
    f->next_input = c->inputs;
    c->inputs = f;
    *out = f;
    return CH_OK;
}

void ch__worker_input_unref(const ch_coord_context *t, ch_worker_input *f)
{
    ch_worker_input **at = &t->c->inputs;

    if (f == NULL || --f->refs > 0)
        return;
    while (*at != NULL && *at != f)
        at = &(*at)->next_input;
    if (*at == f)
        *at = f->next_input;
    for (int i = 0; i < f->n_streams; i++) {
        ch__workers_drop(t, f->stream[i].number, CH_SENT_STREAM);
        ch_tensor_unref(f->stream[i].dataset);
        ch_tensor_unref(f->stream[i].position);
        ch_tensor_unref(f->stream[i].pending);
        ch__free(f->stream[i].returned);
    }
    for (int i = 0; i < f->n_values * f->copies * f->width; i++)
        ch_tensor_unref(f->value[i]);
    ch__free(f->stream);
    ch__free(f->value);
    ch__free(f);
}

/* Creates n streams, each with a new number. References the datasets. */
static ch_status make_streams(ch_coord *c, int n, ch_tensor *const *dataset, ch_worker_input *f)
{
    f->stream = ch__calloc((size_t)n, sizeof(*f->stream));
    if (f->stream == NULL)
        return ch__fail_memory("data for workers");
    for (; f->n_streams < n; f->n_streams++)
        f->stream[f->n_streams] =
            (ch_worker_input_stream){.number = ++c->n_numbers,
                                     .dataset = ch_tensor_ref(dataset[f->n_streams]),
                                     .end = INT64_MAX,
                                     .holder = -1};
    return CH_OK;
}

ch_status ch__coord_input_datasets(ch_task *coord, int n, ch_tensor *const *dataset, int width,
                                   int64_t pass, bool is_shared, ch_worker_input **out)
{
    ch_worker_input *f = NULL;
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc = new_worker_input(t.c, &f);
    if (rc == CH_OK)
        rc = make_streams(t.c, n, dataset, f);
    if (rc == CH_OK) {
        f->width = width;
        f->pass = pass;
        f->is_shared = is_shared;
        *out = f;
    } else {
        ch__worker_input_unref(&t, f);
    }
    ch__task_leave(coord);
    return rc;
}

ch_status ch__coord_input_values(ch_task *coord, int n, int copies, int width,
                                 ch_tensor *const *value, ch_worker_input **out)
{
    ch_worker_input *f = NULL;
    ch_coord_context t = ch__coord_enter(coord);
    ch_status        rc = new_worker_input(t.c, &f);
    if (rc == CH_OK) {
        f->value = ch__calloc((size_t)(n * copies * width) + 1, sizeof(ch_tensor *));
        if (f->value == NULL)
            rc = ch__fail_memory("values for workers");
    }
    if (rc == CH_OK) {
        f->n_values = n;
        f->copies = copies;
        f->width = width;
        for (int i = 0; i < n * copies * width; i++)
            f->value[i] = ch_tensor_ref(value[i]);
        *out = f;
    } else {
        ch__worker_input_unref(&t, f);
    }
    ch__task_leave(coord);
    return rc;
}

void ch__coord_input_ref(ch_worker_input *f)
{
    f->refs++;
}

void ch__coord_input_unref(ch_task *coord, ch_worker_input *f)
{
    ch_coord_context t;

    if (f == NULL)
        return;
    t = ch__coord_enter(coord);
    if (t.c != NULL)
        ch__worker_input_unref(&t, f);
    ch__task_leave(coord);
}

/* ---- returned elements ----
 *
 * `returned` is a binary heap: no element is before its parent, so the first is the smallest.
 */

/* Makes room for the return of one more leased element. Returns false if memory is
 * exhausted. */
static bool reserve_return(ch_worker_input_stream *s)
{
    return ch__grow((void **)&s->returned, &s->cap_returned, s->n_returned + s->n_leased + 1,
                    sizeof(*s->returned));
}

static void push_returned(ch_worker_input_stream *s, int64_t number)
{
    int at = s->n_returned++;

    assert(at < s->cap_returned);
    for (; at > 0 && s->returned[(at - 1) / 2] > number; at = (at - 1) / 2)
        s->returned[at] = s->returned[(at - 1) / 2];
    s->returned[at] = number;
}

/* Removes and returns the smallest number. There must be one. */
static int64_t pop_returned(ch_worker_input_stream *s)
{
    int64_t first = s->returned[0], last = s->returned[--s->n_returned];
    int     at = 0, child = 1;

    for (; child < s->n_returned; child = 2 * at + 1) {
        child += child + 1 < s->n_returned && s->returned[child + 1] < s->returned[child];
        if (last <= s->returned[child])
            break;
        s->returned[at] = s->returned[child];
        at = child;
    }
    s->returned[at] = last;
    return first;
}

static int count_returned_before(const ch_worker_input_stream *s, int64_t number)
{
    int n = 0;

    for (int i = 0; i < s->n_returned; i++)
        n += s->returned[i] < number;
    return n;
}

/* ---- leases ---- */

/* Returns true if there is an element to lease, or if the end is not known yet. Returned
 * elements come first. They are all before `next`. */
static bool has_more(const ch_worker_input_stream *s)
{
    return (s->n_returned > 0 ? s->returned[0] : s->next) < s->end;
}

/* Chooses a stream of a shared input that has elements left: the worker's own stream; else one
 * that this worker or no worker holds; else any. Returns its index, or -1 if all have ended. */
static int choose_shared(const ch_worker_input *f, int worker)
{
    int preferred = worker % f->n_streams, best = -1;

    if (has_more(&f->stream[preferred]))
        return preferred;
    for (int i = 0; i < f->n_streams; i++)
        if (has_more(&f->stream[i]) &&
            (best < 0 || f->stream[i].holder == worker || f->stream[i].holder < 0))
            best = i;
    return best;
}

/* Chooses the stream whose turn it is. In rounds all depends on the order of steps, not on the
 * workers that happen to be free. Of a shared input, streams that have ended are skipped.
 * Returns its index, or -1 if all have ended. */
static int choose_in_turn(const ch_worker_input *f)
{
    for (int i = 0; i < f->n_streams; i++) {
        int stream = (int)((f->n_turns + i) % f->n_streams);

        if (!f->is_shared || has_more(&f->stream[stream]))
            return stream;
    }
    return -1;
}

ch_status ch__worker_input_choose(const ch_coord *c, ch_scheduled *s, int worker)
{
    for (int i = 0; i < s->n_leases; i++) {
        ch_lease *l = &s->lease[i];

        if (l->input->n_values > 0 || l->number >= 0)
            continue;
        if (c->opt.how.mode == CH_SYNCHRONOUS)
            l->stream = choose_in_turn(l->input);
        else
            l->stream = l->input->is_shared ? choose_shared(l->input, worker)
                                            : worker % l->input->n_streams;
        if (l->stream < 0)
            return ch__fail(CH_OUT_OF_RANGE,
                            "no elements are left in the data that it reads; begin a new pass "
                            "with ch_per_worker_iterate");
    }
    return CH_OK;
}

bool ch__worker_input_lease(ch_scheduled *s, int worker)
{
    for (int i = 0; i < s->n_leases; i++) {
        ch_lease               *l = &s->lease[i];
        ch_worker_input_stream *from;

        if (l->input->n_values > 0)
            continue;
        from = &l->input->stream[l->stream];
        from->holder = worker;
        if (l->number >= 0)
            continue;
        if (!reserve_return(from))
            return false;
        l->number = from->n_returned > 0 ? pop_returned(from) : from->next++;
        from->n_leased++;
        l->input->n_turns++;
    }
    return true;
}

/* Ends a lease, and returns the element to its stream. An element before the pending position
 * still counts in n_before, until a step that has leased it again is done or has failed. */
static void return_lease(ch_lease *l)
{
    ch_worker_input_stream *from = &l->input->stream[l->stream];

    from->n_leased--;
    if (l->number < from->end)
        push_returned(from, l->number);
    l->number = -1;
}

void ch__worker_input_return(ch_scheduled *s)
{
    for (int i = 0; i < s->n_leases; i++)
        if (s->lease[i].number >= 0)
            return_lease(&s->lease[i]);
}

static ch_status pack_stream(const ch_worker_input *f, const ch_worker_input_stream *s,
                             ch_message **out)
{
    Cohort__WorkerStream m;
    ch_tensor           *tensor[2] = {ch_tensor_ref(s->dataset), ch_tensor_ref(s->position)};

    cohort__worker_stream__init(&m);
    m.stream = s->number;
    m.reader = s - f->stream;
    m.pass = f->pass;
    m.first = s->position != NULL ? s->position_at : 0;
    return ch__message_pack(CH_WORKER_STREAM, &m.base, s->position != NULL ? 2 : 1, tensor,
                            out);
}

/* Returns true if the worker has received the stream. Otherwise sends the stream with its
 * current position. */
static bool is_stream_sent(const ch_coord_context *t, const ch_worker_input *f,
                           const ch_worker_input_stream *s, int worker)
{
    ch_worker_entry *m = t->c->worker[worker];
    ch_message      *p = NULL;
    bool             has_stream;

    if (ch__map_find(&m->sent, (ch_key){s->number, 0}) != NULL)
        return m->n_sending == 0;
    if (pack_stream(f, s, &p) != CH_OK)
        return false;
    has_stream = ch__workers_send_once(t, m, s->number, p);
    ch__message_unref(p);
    return has_stream;
}

bool ch__worker_input_is_sent(const ch_coord_context *t, const ch_scheduled *s, int worker)
{
    bool sent = true;

    for (int i = 0; i < s->n_leases; i++) {
        const ch_lease *l = &s->lease[i];

        if (l->input->n_values == 0)
            sent &= is_stream_sent(t, l->input, &l->input->stream[l->stream], worker);
    }
    return sent;
}

/* ---- ends and positions ---- */

bool ch__worker_input_ended(const ch_coord_context *t, ch_scheduled *s, uint64_t stream)
{
    bool again = false;

    (void)t;
    for (int i = 0; i < s->n_leases; i++) {
        ch_lease               *l = &s->lease[i];
        ch_worker_input_stream *from =
            l->input->n_values == 0 ? &l->input->stream[l->stream] : NULL;

        if (from == NULL || from->number != stream)
            continue;
        if (l->number < from->end)
            from->end = l->number;
        from->n_leased--;
        l->number = -1;
        again = l->input->is_shared && choose_shared(l->input, l->stream) >= 0;
    }
    return again;
}

/* Makes the pending position the current position if no element before it is leased or
 * returned. */
static void use_pending(ch_worker_input_stream *s)
{
    if (s->pending == NULL || s->n_before > 0)
        return;
    ch_tensor_unref(s->position);
    s->position = s->pending;
    s->position_at = s->pending_at;
    s->pending = NULL;
}

/* Returns the number of leases of a step on elements of a stream before `number`. */
static int reads_before(const ch_scheduled *s, uint64_t stream, int64_t number)
{
    int n = 0;

    for (int i = 0; i < s->n_leases; i++) {
        const ch_lease *l = &s->lease[i];

        n += l->input->n_values == 0 && l->number >= 0 && l->number < number &&
             l->input->stream[l->stream].number == stream;
    }
    return n;
}

/* Returns the number of steps that have not ended and read an element before `number`. Only
 * steps that were sent have leases. The queue has own steps first, then the others. In each of
 * the two, the steps that were sent come before the steps that were not. */
static int count_before(const ch_coord *c, uint64_t stream, int64_t number)
{
    int n = 0;

    for (const ch_scheduled *s = c->running.first; s != NULL; s = s->after)
        n += reads_before(s, stream, number);
    for (const ch_scheduled *s = c->queue.first; s != NULL && (s->was_sent || s->is_own);
         s = s->after)
        n += s->was_sent ? reads_before(s, stream, number) : 0;
    return n;
}

void ch__worker_input_position(const ch_coord_context *t, uint64_t stream, int64_t number,
                               ch_tensor *position)
{
    for (ch_worker_input *f = t->c->inputs; f != NULL; f = f->next_input)
        for (int i = 0; i < f->n_streams; i++) {
            ch_worker_input_stream *s = &f->stream[i];

            if (s->number != stream || s->pending != NULL || number <= s->position_at)
                continue;
            s->pending = ch_tensor_ref(position);
            s->pending_at = number;
            s->n_before = count_before(t->c, stream, number) + count_returned_before(s, number);
            use_pending(s);
        }
}

/* Ends a lease on an element that is used up. If it was the last before the pending position,
 * uses that. */
static void end_lease(ch_lease *l)
{
    ch_worker_input_stream *from;

    if (l->number < 0)
        return;
    from = &l->input->stream[l->stream];
    from->n_leased--;
    if (from->pending != NULL && l->number < from->pending_at) {
        from->n_before--;
        use_pending(from);
    }
    l->number = -1;
}

void ch__worker_input_release(const ch_coord_context *t, ch_scheduled *s)
{
    if (s->state == CH_STEP_CANCELLED && CH_KEEPS(RETURN))
        ch__worker_input_return(s);
    for (int i = 0; i < s->n_leases; i++) {
        end_lease(&s->lease[i]);
        ch__worker_input_unref(t, s->lease[i].input);
    }
    s->n_leases = 0;
}

void ch__worker_input_worker_lost(const ch_coord *c, int worker)
{
    for (ch_worker_input *f = c->inputs; f != NULL; f = f->next_input)
        for (int i = 0; i < f->n_streams; i++)
            if (f->stream[i].holder == worker)
                f->stream[i].holder = -1;
}

/* ---- saving and resuming ---- */

/* The message of a stream points to the stream's memory. */
static void describe_stream(const ch_worker_input_stream *s, bool with_dataset,
                            Cohort__StreamState *m)
{
    cohort__stream_state__init(m);
    if (s->position != NULL) {
        m->position.data = (uint8_t *)s->position->data;
        m->position.len = ch_tensor_bytes(s->position);
        m->first = s->position_at;
    }
    m->next = s->next;
    m->end = s->end < INT64_MAX ? s->end : -1;
    m->n_returned = (size_t)s->n_returned;
    m->returned = s->returned;
    if (with_dataset) {
        m->dataset.data = (uint8_t *)s->dataset->data;
        m->dataset.len = ch_tensor_bytes(s->dataset);
    }
}

static ch_status pack_pass(const ch_worker_input *f, bool with_datasets, void **bytes,
                           size_t *n)
{
    Cohort__PassState     m;
    Cohort__StreamState  *stream = ch__calloc((size_t)f->n_streams, sizeof(*stream));
    Cohort__StreamState **list = ch__calloc((size_t)f->n_streams, sizeof(*list));
    ch_status rc = stream == NULL || list == NULL ? ch__fail_memory("a position") : CH_OK;

    cohort__pass_state__init(&m);
    m.pass = f->pass;
    m.turns = f->n_turns;
    m.streams = list;
    for (int i = 0; i < f->n_streams && rc == CH_OK; i++) {
        describe_stream(&f->stream[i], with_datasets, &stream[i]);
        list[m.n_streams++] = &stream[i];
    }
    if (rc == CH_OK)
        rc = ch__protobuf_pack(&m.base, bytes, n);
    ch__free(stream);
    ch__free(list);
    return rc;
}

ch_status ch__coord_input_save(ch_task *coord, const ch_worker_input *f, bool with_datasets,
                               void **bytes, size_t *n)
{
    ch_status rc = CH_OK;

    (void)ch__coord_enter(coord);
    for (int i = 0; i < f->n_streams && rc == CH_OK; i++)
        if (f->stream[i].n_leased > 0)
            rc = ch__fail(CH_FAILED_PRECONDITION,
                          "position of a per-worker dataset: %d steps that read it are "
                          "running; save it between steps",
                          f->stream[i].n_leased);
    if (rc == CH_OK)
        rc = pack_pass(f, with_datasets, bytes, n);
    return ch__coord_leave(coord, rc);
}

/* Limit of saved numbers, so that counting on from them does not overflow. */
static const int64_t most_number = INT64_MAX / 2;

/* Sets a new stream to a saved state, which is untrusted. */
static ch_status resume_stream(const Cohort__StreamState *m, ch_worker_input_stream *s)
{
    ch_status rc = CH_OK;
    bool      is_valid = m->first >= 0 && m->next >= m->first && m->next <= most_number &&
                    m->end >= -1 && (m->first == 0 || m->position.len > 0) &&
                    m->n_returned <= INT32_MAX;

    for (size_t i = 0; i < m->n_returned && is_valid; i++)
        is_valid = m->returned[i] >= m->first && m->returned[i] < m->next;
    if (!is_valid)
        return ch__fail(CH_DATA_LOSS, "the saved state of a stream is not valid");
    s->next = m->next;
    s->end = m->end >= 0 ? m->end : INT64_MAX;
    if (m->position.len > 0) {
        rc = ch_tensor_copy_of(CH_U8, ch_shape_of((int64_t)m->position.len), m->position.data,
                               &s->position);
        s->position_at = m->first;
    }
    if (rc == CH_OK && !ch__grow((void **)&s->returned, &s->cap_returned, (int)m->n_returned,
                                 sizeof(*s->returned)))
        rc = ch__fail_memory("data for workers");
    for (size_t i = 0; i < m->n_returned && rc == CH_OK; i++)
        push_returned(s, m->returned[i]);
    return rc;
}

ch_status ch__coord_input_resume(ch_task *coord, const Cohort__PassState *m,
                                 ch_tensor *const *dataset, int width, bool is_shared,
                                 ch_worker_input **out)
{
    ch_worker_input *f = NULL;
    ch_status rc = m->n_streams == 0 || m->pass < 0 || m->turns < 0 || m->turns > most_number
                       ? ch__fail(CH_DATA_LOSS, "the saved state of a pass is not valid")
                       : ch__coord_input_datasets(coord, (int)m->n_streams, dataset, width,
                                                  m->pass, is_shared, &f);

    if (rc != CH_OK)
        return rc;
    (void)ch__coord_enter(coord); /* the task has a list of all worker inputs */
    for (int i = 0; rc == CH_OK && i < f->n_streams; i++)
        rc = resume_stream(m->streams[i], &f->stream[i]);
    f->n_turns = m->turns;
    ch__task_leave(coord);
    if (rc == CH_OK)
        *out = f;
    else
        ch__coord_input_unref(coord, f);
    return rc;
}
