/* data/workqueue.c -- belts of work.
 *
 * Everything in a belt but `current` is guarded by the iterator's lock, which is held for
 * moments: items are passed on by pointer. `current` is the item that is being taken from; it
 * belongs to whoever takes, who is one thread at a time, so that an element costs no lock.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "data/workqueue.h"

#include <string.h>

#include "base/fault.h"
#include "base/mem.h"
#include "base/thread.h"
#include "data/iterator.h"

enum {
    MOST = 256,        /* elements of an item, and items of a belt */
    WORTH_NS = 200000, /* an item that takes less time could be larger */
    TOO_LONG_NS = 2000000
};

struct ch_workqueue {
    ch_cursor              *cursor;
    ch_iterator            *it;
    const ch_workqueue_ops *ops;
    ch_workqueue_options    opt;
    int                     want;     /* elements of the next item */
    int                     capacity; /* items ahead, at present */
    bool                    is_pulling, is_held, has_ended;
    bool                    is_short; /* there was no memory for an item: who takes is to try */
    int                     n_busy;   /* items being pulled or made */
    int                     n;        /* items pulled, busy or ready, and not taken */
    ch_data_job            *item[MOST]; /* in order */
    ch_data_job            *spare;      /* one that was taken */
    int64_t                 n_pulled;   /* elements */
    int64_t                 wait_ns;    /* of those who take */
    int64_t    own_ns; /* of work, without what was done for other belts meanwhile */
    ch_cursor *runner; /* of the body that it is in; NULL: in none */
    ch_charge  charge;

    ch_waiters waiters; /* who waits for something of this belt */

    ch_data_job *current; /* of who takes */
};

/* ---- crowds ---- */

void ch__waiters_init(ch_waiters *c)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void ch__waiters_wake_all(ch_waiters *c)
{
    if (c->n > 0)
        pthread_cond_broadcast(&c->changed);
}

void ch__waiters_wake_one(ch_waiters *c)
{
    if (c->n > 0)
        pthread_cond_signal(&c->changed);
}

ch_waiters *ch__workqueue_waiters(ch_workqueue *l)
{
    return &l->waiters;
}

/* ---- items ---- */

static void drop_slots(ch_data_job *i)
{
    for (int k = i->taken; k < i->n; k++)
        ch__job_result_drop(&i->slot[k]);
    i->n = i->taken = 0;
}

static void item_free(ch_data_job *i)
{
    if (i == NULL)
        return;
    drop_slots(i);
    ch__free(i->slot);
    ch__free(i->note);
    ch__free(i);
}

void ch__job_result_drop(ch_job_result *s)
{
    ch__element_free(s->element);
    ch__free(s->text);
    *s = (ch_job_result){0};
}

void ch__job_result_fail(ch_job_result *s, ch_status rc)
{
    ch__job_result_drop(s);
    s->rc = rc;
    s->is_between = ch__error_is_between();
    s->text = ch__strdup(ch_error_message());
}

static ch_job_result *item_place(ch_data_job *i)
{
    /* Nothing goes missing in silence, and nothing comes between what is lost and its error. */
    if (i->has_lost || !ch__grow((void **)&i->slot, &i->capacity, i->n + 1, sizeof(*i->slot))) {
        i->has_lost = true;
        return NULL;
    }
    i->slot[i->n] = (ch_job_result){0};
    return &i->slot[i->n++];
}

void ch__data_job_add(ch_data_job *i, ch_element *e)
{
    ch_job_result *s = item_place(i);

    if (s != NULL)
        s->element = e;
    else
        ch__element_free(e);
}

void ch__data_job_add_error(ch_data_job *i, ch_status rc)
{
    ch_job_result *s = item_place(i);

    if (s != NULL)
        ch__job_result_fail(s, rc);
}

void ch__data_job_fill(ch_data_job *i, ch_cursor *from)
{
    while (i->n < i->want && !i->has_lost) {
        ch_element *e = NULL;
        ch_status   rc = ch__cursor_next(from, &e);

        if (rc != CH_OK) {
            ch__data_job_add_error(i, rc);
            if (rc == CH_CANCELLED)
                return;
        } else if (e == NULL) {
            i->has_end = true;
            return;
        } else {
            ch__data_job_add(i, e);
        }
    }
}

void ch__workqueue_pull_input(ch_cursor *c, ch_data_job *i)
{
    ch__data_job_fill(i, c->in[0]);
}

void ch__data_job_note(ch_data_job *i, const char *text)
{
    if (i->note != NULL && strcmp(i->note, text) == 0)
        return;
    ch__free(i->note);
    i->note = ch__strdup(text);
}

void ch__data_job_close_gaps(ch_data_job *i)
{
    int n = 0;

    for (int k = 0; k < i->n; k++)
        if (i->slot[k].element != NULL || i->slot[k].rc != CH_OK)
            i->slot[n++] = i->slot[k];
    i->n = n;
}

/* ---- opening and closing ---- */

static ch_status enlist(ch_workqueue *l)
{
    ch_iterator *it = l->it;
    bool         fits;

    pthread_mutex_lock(&it->lock);
    fits = ch__grow((void **)&it->workqueue, &it->cap_workqueues, it->n_workqueues + 1,
                    sizeof(*it->workqueue));
    if (fits) {
        it->workqueue[it->n_workqueues++] = l;
        ch__charge_open(&it->budget, &l->charge, l->want);
        ch__waiters_wake_one(&it->idle);
    }
    pthread_mutex_unlock(&it->lock);
    return fits ? CH_OK : ch__fail_memory(l->cursor->stage->name);
}

static void strike_off(ch_workqueue *l)
{
    ch_iterator *it = l->it;

    for (int i = 0; i < it->n_workqueues; i++)
        if (it->workqueue[i] == l) {
            memmove(&it->workqueue[i], &it->workqueue[i + 1],
                    (size_t)(it->n_workqueues - i - 1) * sizeof(*it->workqueue));
            it->n_workqueues--;
            ch__charge_close(&it->budget, &l->charge);
            return;
        }
}

ch_status ch__workqueue_open(ch_cursor *c, const ch_workqueue_ops *ops,
                             const ch_workqueue_options *opt)
{
    ch_workqueue *l = ch__calloc(1, sizeof(*l));
    int           threads = c->it->n_threads;
    ch_status     rc;

    if (l == NULL)
        return ch__fail_memory(c->stage->name);
    ch__waiters_init(&l->waiters);
    l->cursor = c;
    l->runner = ch__cursor_runner(c);
    l->it = c->it;
    l->ops = ops;
    l->opt = *opt;
    l->want = opt->want > 0 ? opt->want : 1;
    l->capacity = opt->ahead > 0 ? opt->ahead : 2 * threads + 2;
    if (threads == 0 || opt->ahead == CH_OFF)
        l->capacity = 1;
    if (l->capacity > MOST)
        l->capacity = MOST;
    rc = enlist(l);
    if (rc != CH_OK) {
        pthread_cond_destroy(&l->waiters.changed);
        ch__free(l);
        return rc;
    }
    c->workqueue = l;
    return CH_OK;
}

void ch__workqueue_close(ch_workqueue *l)
{
    if (l == NULL)
        return;
    ch__workqueue_pause(l);
    ch__workqueue_clear(l);
    pthread_mutex_lock(&l->it->lock);
    strike_off(l);
    pthread_mutex_unlock(&l->it->lock);
    item_free(l->spare);
    pthread_cond_destroy(&l->waiters.changed);
    ch__free(l);
}

/* ---- bytes ---- */

/* For the one item that a belt has to hold, or for more of them within the budget. */
static bool has_room(const ch_workqueue *l)
{
    return l->it->budget.most == 0 || (l->n == 0 && l->current == NULL) ||
           ch__charge_fits(&l->it->budget, &l->charge, l->want);
}

/* Smaller items where there is no room for such. */
static void make_fit(ch_workqueue *l)
{
    while (l->it->budget.most > 0 && l->want > l->charge.least_want &&
           !ch__charge_fits(&l->it->budget, &l->charge, l->want))
        l->want /= 2;
}

/* With the lock held: an item is charged for `bytes` now. */
static void charge(ch_workqueue *l, ch_data_job *i, int64_t bytes)
{
    ch__charge_add(&l->it->budget, &l->charge, bytes - i->bytes);
    i->bytes = bytes;
}

static int64_t bytes_of(const ch_workqueue *l, const ch_data_job *i)
{
    int64_t bytes = 0;

    for (int k = i->taken; k < i->n && l->it->budget.most > 0; k++)
        if (i->slot[k].element != NULL)
            bytes += ch__element_bytes(i->slot[k].element);
    return bytes;
}

/* The stage whose items are largest. */
static const ch_workqueue *neediest(const ch_iterator *it)
{
    const ch_workqueue *most = it->workqueue[0];

    for (int i = 1; i < it->n_workqueues; i++)
        if (ch__charge_least(&it->workqueue[i]->charge) > ch__charge_least(&most->charge))
            most = it->workqueue[i];
    return most;
}

/* With the lock held: what an item took is known. Where that cannot be, an error takes its place. */
static void settle(ch_workqueue *l, ch_data_job *i, int64_t at_most, int64_t now)
{
    ch_budget *b = &l->it->budget;
    int64_t    kept = atomic_load_explicit(&b->kept, memory_order_relaxed);

    if (b->most == 0)
        return;
    ch__charge_learn(b, &l->charge, i->want, at_most);
    charge(l, i, now);
    if (b->least + kept <= ch__budget_limit(b) || i->n == 0)
        return;
    const ch_workqueue *who = neediest(l->it);
    int64_t             needs = ch__charge_least(&who->charge);
    ch_status           rc =
        ch__fail(CH_RESOURCE_EXHAUSTED,
                 "%s: it has to hold %lld bytes; the least that all buffers of the pipeline "
                 "need is %lld, "
                 "and memory_bytes is %lld: make batches and buffers smaller, or that larger",
                 kept > needs ? b->keeper : who->cursor->stage->name,
                 (long long)(kept > needs ? kept : needs), (long long)(b->least + kept),
                 (long long)b->most);
    for (int k = 1; k < i->n; k++)
        ch__job_result_drop(&i->slot[k]);
    ch__job_result_fail(&i->slot[0], rc);
    i->n = 1;
    charge(l, i, 0);
}

/* ---- working ---- */

static bool has_work(const ch_workqueue *l)
{
    return !l->is_pulling && !l->is_held && !l->has_ended && l->n < l->capacity &&
           (l->opt.at_once == 0 || l->n_busy < l->opt.at_once) && has_room(l);
}

/* Whoever takes can do work meanwhile, unless that is the program and there are others for it. */
static bool taker_works(const ch_workqueue *l)
{
    return l->it->n_workers == 0 || l->opt.ahead == CH_OFF || l->cursor->parent != NULL;
}

/* For threads that work ahead. */
static bool has_work_ahead(const ch_workqueue *l)
{
    return l->opt.ahead != CH_OFF && has_work(l);
}

/* An item can be taken, or there will be none. */
static bool has_result(const ch_workqueue *l)
{
    for (int i = 0; i < l->n; i++)
        if (l->item[i]->is_ready && (i == 0 || l->opt.unordered))
            return true;
    return l->n == 0 && l->has_ended;
}

/* With the lock held: the belt has changed. Tells those who can go on now; where bytes are counted, that may
 * be anybody. */
static void tell(ch_workqueue *l)
{
    if (l->it->budget.most > 0) {
        ch__iterator_wake_all(l->it);
        return;
    }
    if (l->waiters.n + l->it->others.n + l->it->idle.n == 0)
        return; /* nobody waits */
    if (has_result(l) || ((l->is_held || l->it->is_paused) && l->n_busy == 0) ||
        (taker_works(l) && has_work(l))) {
        ch__waiters_wake_all(&l->waiters);
        ch__waiters_wake_all(&l->it->others);
    }
    if (has_work_ahead(l))
        ch__waiters_wake_one(&l->it->idle);
}

static ch_data_job *new_item(ch_workqueue *l)
{
    ch_data_job *i = l->spare;

    l->spare = NULL;
    if (i == NULL)
        i = ch__calloc(1, sizeof(*i));
    if (i == NULL)
        return NULL;
    drop_slots(i);
    i->bytes = 0;
    i->is_ready = i->has_end = i->is_last = i->has_lost = false;
    i->want = l->want;
    i->first = l->n_pulled;
    return i;
}

/* Returns true if measured times decide how large items are. */
static bool workqueue_is_tuned(const ch_workqueue *l)
{
    return l->opt.want == 0 && l->it->n_threads > 0;
}

/* Items as large as makes passing them on cheap, and no larger. */
static void tune(ch_workqueue *l, int64_t ns, int n)
{
    if (ns < WORTH_NS && n == l->want && l->want < MOST)
        l->want *= 2;
    else if (ns > TOO_LONG_NS && l->want > 1)
        l->want /= 2;
}

/* ---- time ---- */

static _Thread_local int64_t helped_ns;

int64_t ch__workqueue_helped_ns(void)
{
    return helped_ns;
}

/* Work that began when this thread had helped for `before` and the processor's time was `from` is done.
 * Returns what was for this belt alone: who has to wait while working does work for others. */
static int64_t stop_clock(int64_t before, int64_t from)
{
    int64_t all = ch__cpu_ns() - from, others = helped_ns - before;

    helped_ns = before + all;
    return all - others;
}

/* With the lock held. What is done in bodies is the doing of the stage that runs them. */
static void add_time(ch_workqueue *l, int64_t own_ns, int64_t wait_ns)
{
    if (l->runner != NULL) {
        l->runner->counts.body_ns += own_ns;
        l->runner->counts.body_wait_ns += wait_ns;
    }
    l->own_ns += own_ns;
    l->wait_ns += wait_ns;
}

/* With the lock held: `n` elements were pulled, and the next item may be. */
static void end_pull(ch_workqueue *l, const ch_data_job *i, int n)
{
    l->n_pulled += n;
    l->is_pulling = false;
    l->has_ended |= i->has_end;
    tell(l);
}

/* Pulls and makes one item. The lock is held before and after, and not meanwhile. */
static ch_status work(ch_workqueue *l)
{
    bool         is_timed = ch__workqueue_is_timed(l), is_tuned = workqueue_is_tuned(l);
    bool         others_pull = l->it->n_threads > 0; /* while this thread makes */
    ch_data_job *i;
    int64_t      began, from, before, own, pulled, made;
    int          n;

    make_fit(l);
    i = new_item(l);
    if (i == NULL)
        return ch__fail_memory(l->cursor->stage->name);
    charge(l, i, l->charge.element_bytes * l->want);
    l->item[l->n++] = i;
    l->is_pulling = true;
    l->n_busy++;
    pthread_mutex_unlock(&l->it->lock);
    began = is_tuned ? ch__now_ns() : 0;
    before = helped_ns;
    from = is_timed ? ch__cpu_ns() : 0;
    l->ops->pull(l->cursor, i);
    n = i->n;
    pulled = bytes_of(l, i);
    if (others_pull) {
        pthread_mutex_lock(&l->it->lock);
        end_pull(l, i, n);
        pthread_mutex_unlock(&l->it->lock);
    }
    if (l->ops->make != NULL)
        l->ops->make(l->cursor, i);
    made = bytes_of(l, i);
    own = is_timed ? stop_clock(before, from) : 0;
    pthread_mutex_lock(&l->it->lock);
    if (!others_pull)
        end_pull(l, i, n);
    settle(l, i, l->ops->make != NULL ? pulled + made : made, made);
    i->is_ready = true;
    l->has_ended |= i->is_last;
    l->n_busy--;
    add_time(l, own, 0);
    if (is_tuned)
        tune(l, ch__now_ns() - began, i->n);
    tell(l);
    return CH_OK;
}

bool ch__workqueue_work(ch_workqueue *l)
{
    if (!has_work_ahead(l))
        return false;
    if (work(l) == CH_OK)
        return true;
    l->is_short = true;
    ch__waiters_wake_all(&l->waiters);
    ch__waiters_wake_all(&l->it->others);
    return false;
}

const ch_cursor *ch__workqueue_busy(const ch_workqueue *l)
{
    return l->n_busy > 0 ? l->cursor : NULL;
}

/* ---- taking ---- */

/* Takes the next item off the belt; NULL: it is not ready. */
static ch_data_job *take_item(ch_workqueue *l)
{
    int at = 0;

    while (l->opt.unordered && at + 1 < l->n && !l->item[at]->is_ready)
        at++;
    if (at >= l->n || !l->item[at]->is_ready)
        return NULL;
    ch_data_job *i = l->item[at];
    memmove(&l->item[at], &l->item[at + 1], (size_t)(l->n - at - 1) * sizeof(ch_data_job *));
    l->n--;
    /* Only where there is room for some: who takes one does not wake somebody each time. */
    if (l->n <= l->capacity / 2 || l->it->budget.most > 0)
        tell(l);
    return i;
}

/* Twice as much beforehand, where that was not enough although threads have been idle. */
static void wish_for_more(ch_workqueue *l)
{
    if (l->opt.ahead > 0 || l->n_pulled <= 8 || l->it->idle.n == 0 ||
        l->capacity * 2 > 8 * l->it->n_threads + 8)
        return;
    l->capacity *= 2;
    tell(l);
}

/* With the lock held: `current` is the next item; NULL at the end. */
static ch_status advance(ch_workqueue *l)
{
    ch_status rc = CH_OK;

    while (rc == CH_OK && (l->current = take_item(l)) == NULL) {
        if (atomic_load_explicit(&l->it->stops, memory_order_relaxed))
            return ch__fail(CH_CANCELLED, "%s: the iterator was let go",
                            l->cursor->stage->name);
        if (l->n == 0 && l->has_ended)
            return CH_OK;
        if (has_work(l) && (taker_works(l) || l->is_short)) {
            l->is_short = false;
            rc = work(l);
            continue;
        }
        int64_t t0 = ch__now_ns();

        wish_for_more(l);
        ch__iterator_wait(l->it, &l->waiters, l->cursor->stage->name);
        add_time(l, 0, ch__now_ns() - t0);
    }
    return rc;
}

static ch_status give(ch_job_result *s, ch_element **out)
{
    ch_status rc = s->rc;

    if (rc == CH_OK) {
        *out = s->element;
        *s = (ch_job_result){0};
        return CH_OK;
    }
    (void)ch__fail(rc, "%s", s->text != NULL ? s->text : "no memory for the message");
    if (s->is_between)
        (void)ch__error_between(rc);
    ch__job_result_drop(s);
    return rc;
}

ch_status ch__workqueue_next(ch_workqueue *l, ch_element **out)
{
    ch_data_job *i;

    while ((i = l->current) == NULL || i->taken == i->n) {
        ch_status rc;

        if (i != NULL && i->has_lost) {
            i->has_lost = false;
            return ch__fail_memory(l->cursor->stage->name);
        }
        if (i != NULL && i->is_last) {
            *out = NULL;
            return CH_OK;
        }
        pthread_mutex_lock(&l->it->lock);
        if (i != NULL) {
            charge(l, i, 0);
            item_free(l->spare);
            l->spare = i;
            l->current = NULL;
            if (l->it->budget.most > 0)
                ch__iterator_wake_all(l->it); /* there is room */
        }
        rc = advance(l);
        pthread_mutex_unlock(&l->it->lock);
        if (rc != CH_OK)
            return rc;
        if (l->current == NULL) {
            *out = NULL;
            return CH_OK;
        }
    }
    return give(&i->slot[i->taken++], out);
}

/* ---- several belts ---- */

/* With the lock held, by who takes. */
static bool has_something(const ch_workqueue *l)
{
    const ch_data_job *i = l->current;

    if (i != NULL && (i->taken < i->n || i->has_lost || i->is_last))
        return true;
    return has_result(l);
}

static int find_any(ch_cursor *const *c, int n, int first)
{
    for (int i = 0; i < n; i++)
        if (c[(first + i) % n] != NULL && has_something(c[(first + i) % n]->workqueue))
            return (first + i) % n;
    return -1;
}

static bool work_for_any(ch_cursor *const *c, int n, int first, ch_status *rc)
{
    for (int i = 0; i < n; i++) {
        ch_cursor *at = c[(first + i) % n];

        if (at != NULL && has_work(at->workqueue)) {
            *rc = work(at->workqueue);
            return true;
        }
    }
    return false;
}

/* The time goes to one of them: it is theirs together that is short. */
static void wait_for_any(const ch_cursor *taker, ch_cursor *const *c, int n)
{
    int64_t from = ch__now_ns();

    ch__iterator_wait(taker->it, &taker->it->others, taker->stage->name);
    for (int i = 0; i < n; i++)
        if (c[i] != NULL) {
            add_time(c[i]->workqueue, 0, ch__now_ns() - from);
            break;
        }
}

/* One that has neither a result nor work is being worked on by another thread, who will tell. */
ch_status ch__workqueue_any(const ch_cursor *taker, ch_cursor *const *c, int n, int first,
                            int *out)
{
    ch_iterator *it = taker->it;
    ch_status    rc = CH_OK;

    pthread_mutex_lock(&it->lock);
    while (rc == CH_OK && (*out = find_any(c, n, first)) < 0) {
        if (atomic_load_explicit(&it->stops, memory_order_relaxed))
            rc = ch__fail(CH_CANCELLED, "%s: the iterator was let go", taker->stage->name);
        else if (!work_for_any(c, n, first, &rc))
            wait_for_any(taker, c, n);
    }
    pthread_mutex_unlock(&it->lock);
    return rc;
}

/* ---- holding, saving ---- */

void ch__workqueue_pause(ch_workqueue *l)
{
    pthread_mutex_lock(&l->it->lock);
    l->is_held = true;
    while (l->n_busy > 0)
        ch__iterator_wait(l->it, &l->waiters, l->cursor->stage->name);
    pthread_mutex_unlock(&l->it->lock);
}

void ch__workqueue_resume(ch_workqueue *l)
{
    pthread_mutex_lock(&l->it->lock);
    l->is_held = false;
    ch__iterator_wake_all(l->it);
    pthread_mutex_unlock(&l->it->lock);
}

void ch__workqueue_clear(ch_workqueue *l)
{
    pthread_mutex_lock(&l->it->lock);
    ch__charge_add(&l->it->budget, &l->charge, -l->charge.held);
    pthread_mutex_unlock(&l->it->lock);
    for (int i = 0; i < l->n; i++)
        item_free(l->item[i]);
    item_free(l->current);
    l->current = NULL;
    l->n = 0;
    l->has_ended = false;
    l->n_pulled = 0;
}

static void save_item(const ch_data_job *i, ch_saver *s)
{
    for (int k = i->taken; k < i->n; k++)
        if (i->slot[k].rc == CH_OK)
            ch__save_element(s, i->slot[k].element);
        else
            ch__save_fault(s, i->slot[k].rc, i->slot[k].text, i->slot[k].is_between);
    if (i->has_lost)
        ch__save_fault(s, CH_RESOURCE_EXHAUSTED, "out of memory", false);
}

/* Adds up to what counts of an item; false: nothing behind it does. */
static bool counts(const ch_data_job *i, int64_t *n)
{
    if (i != NULL)
        *n += i->n - i->taken + i->has_lost;
    return i == NULL || !i->is_last;
}

void ch__workqueue_save(ch_workqueue *l, ch_saver *s)
{
    int64_t n = 0;
    int     items = 0;
    bool    goes_on = counts(l->current, &n);

    while (goes_on && items < l->n)
        goes_on = counts(l->item[items++], &n);
    ch__save_int(s, l->n_pulled);
    ch__save_int(s, l->has_ended);
    ch__save_int(s, n);
    if (l->current != NULL)
        save_item(l->current, s);
    for (int i = 0; i < items; i++)
        save_item(l->item[i], s);
}

/* All of it becomes the current item, however much it is. */
ch_status ch__workqueue_load(ch_workqueue *l, ch_loader *from)
{
    ch__workqueue_clear(l);
    l->n_pulled = ch__load_count(from);
    l->has_ended = ch__load_int(from, 0, 1) != 0;
    int64_t n = ch__load_int(from, 0, INT32_MAX);

    l->current = ch__calloc(1, sizeof(*l->current));
    if (l->current == NULL)
        return ch__fail_memory(l->cursor->stage->name);
    for (int64_t i = 0; i < n && !ch__load_fails(from); i++) {
        ch_status   rc = CH_OK;
        ch_element *e = ch__load_result(from, l->cursor->dataset, &rc);

        if (rc == CH_OK)
            ch__data_job_add(l->current, e);
        else
            ch__data_job_add_error(l->current, rc);
    }
    pthread_mutex_lock(&l->it->lock);
    charge(l, l->current, bytes_of(l, l->current));
    if (l->has_ended) /* it will not learn more */
        ch__charge_learn(&l->it->budget, &l->charge, l->want, 0);
    pthread_mutex_unlock(&l->it->lock);
    return ch__load_status(from);
}

/* ---- stages that give what comes off their belt ---- */

ch_status ch__queued_next(ch_cursor *c, ch_element **out)
{
    return ch__workqueue_next(c->workqueue, out);
}

ch_status ch__queued_rewind(ch_cursor *c)
{
    ch_status rc;

    ch__workqueue_pause(c->workqueue);
    ch__workqueue_clear(c->workqueue);
    rc = ch__rewind_inputs(c);
    ch__workqueue_resume(c->workqueue);
    return rc;
}

void ch__queued_save(ch_cursor *c, ch_saver *s)
{
    ch__workqueue_pause(c->workqueue);
    ch__workqueue_save(c->workqueue, s);
    ch__save_inputs(c, s);
    ch__workqueue_resume(c->workqueue);
}

ch_status ch__queued_load(ch_cursor *c, ch_loader *l)
{
    ch_status rc;

    ch__workqueue_pause(c->workqueue);
    rc = ch__workqueue_load(c->workqueue, l);
    if (rc == CH_OK)
        rc = ch__load_inputs(c, l);
    ch__workqueue_resume(c->workqueue);
    return rc;
}

bool ch__workqueue_is_timed(const ch_workqueue *l)
{
    return l->it->n_threads > 0 || l->cursor->parent == NULL;
}

void ch__workqueue_profile(const ch_workqueue *l, ch_stage_profile *out)
{
    out->ready = 0; /* what is being taken is another thread's */
    for (int i = 0; i < l->n; i++)
        out->ready += l->item[i]->is_ready ? l->item[i]->n : 0;
    out->capacity = l->capacity * l->want;
    out->busy_ns = l->own_ns;
    out->wait_ns = l->wait_ns;
}
