/* data/profile.c -- the profile of an iterator: the time and the elements of each stage.
 *
 * A workqueue measures the time of whole jobs. The calls of a cursor's `next` are timed by
 * samples (data/cursor.c). A job calls the cursors below its own, down to the next workqueues,
 * so their sampled times are subtracted from the time of the jobs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "data/iterator.h"
#include "tensor/print.h"

/* Returns true if the jobs of the cursor's workqueue are timed. Otherwise the cursor's time is
 * the time of its calls. */
static bool has_timed_workqueue(const ch_cursor *c)
{
    return c->workqueue != NULL && ch__workqueue_is_timed(c->workqueue);
}

/* Returns the time of the calls of a cursor without a timed workqueue, in ns, without the calls
 * of its inputs. */
static int64_t own_ns(const ch_cursor *c)
{
    int64_t ns = c->counts.ns;

    for (int i = 0; i < c->n_in; i++)
        ns -= c->in[i]->counts.ns;
    return ns > 0 ? ns : 0;
}

/* Returns the time of the cursors that the jobs of c's workqueue call, in ns: all cursors below
 * `c` down to the next timed workqueues. */
static int64_t inside_ns(const ch_cursor *c)
{
    int64_t ns = 0;

    for (int i = 0; i < c->n_in; i++)
        if (!has_timed_workqueue(c->in[i]))
            ns += own_ns(c->in[i]) + inside_ns(c->in[i]);
    return ns;
}

/* Returns the factor that scales the sampled times of the cursors below `c`, so that their sum
 * does not exceed the measured time of c's jobs. At most 1. */
static double share_of(const ch_cursor *c)
{
    ch_stage_profile whole = {0};
    int64_t          inside = inside_ns(c);

    ch__workqueue_profile(c->workqueue, &whole);
    return inside > whole.busy_ns ? (double)whole.busy_ns / (double)inside : 1;
}

/* Adds the profile of `c` and of the cursors below it, a parent before its inputs. The time of
 * a body belongs to the stage that runs it. `share` is share_of the nearest timed workqueue
 * above. *at is the index of the next entry; entries from `n` on are counted, not written. */
static void profile_of(const ch_cursor *c, int depth, double share, ch_stage_profile *out,
                       int n, int *at)
{
    const ch_counts *k = &c->counts;
    ch_stage_profile p = {.stage = c->stage->name, .depth = depth, .n_elements = k->n_elements};
    int              own = (*at)++;

    if (c->workqueue != NULL)
        ch__workqueue_profile(c->workqueue, &p);
    if (has_timed_workqueue(c)) {
        int64_t inside = inside_ns(c);

        share = share_of(c);
        p.busy_ns = inside < p.busy_ns ? p.busy_ns - inside : 0;
    } else {
        p.busy_ns = (int64_t)(share * (double)own_ns(c));
    }
    p.busy_ns += k->body_ns;
    p.wait_ns += k->body_wait_ns;
    if (out != NULL && own < n)
        out[own] = p;
    for (int i = 0; i < c->n_in; i++)
        profile_of(c->in[i], depth + 1, share, out, n, at);
}

int ch_iterator_profile(ch_iterator *it, ch_stage_profile *out, int n)
{
    int at = 0;

    if (it == NULL)
        return 0;
    pthread_mutex_lock(&it->lock);
    const ch_cursor *root = ch__iterator_output(it);
    profile_of(root->in[0], 0, share_of(root), out, out != NULL ? n : 0, &at);
    pthread_mutex_unlock(&it->lock);
    return at;
}

/* Returns the time that the program has waited for the root cursor, in ns. */
static int64_t waited_ns(ch_iterator *it)
{
    ch_stage_profile p = {0};

    pthread_mutex_lock(&it->lock);
    ch__workqueue_profile(ch__iterator_output(it)->workqueue, &p);
    pthread_mutex_unlock(&it->lock);
    return p.wait_ns;
}

int ch_iterator_print_profile(ch_iterator *it, char *text, size_t size)
{
    int               n = ch_iterator_profile(it, NULL, 0);
    ch_stage_profile *p = it != NULL ? ch__calloc((size_t)n, sizeof(*p)) : NULL;
    ch_text           t = ch__text(text, size);
    double            sum = 0;

    if (it == NULL)
        ch__text_add(&t, "NULL");
    if (p == NULL)
        return ch__text_length(&t);
    /* The number of stages may have changed since the first call. */
    n = (int)ch__min(n, ch_iterator_profile(it, p, n));
    for (int i = 0; i < n; i++)
        sum += (double)p[i].busy_ns;
    ch__text_add(&t, "%-28s %12s %10s %7s %10s %s\n", "stage", "elements", "busy ms", "share",
                 "waited ms", "ready");
    for (int i = 0; i < n; i++) {
        ch__text_add(&t, "%*s%-*s %12lld %10.1f %6.1f%% %10.1f", 2 * p[i].depth, "",
                     28 - 2 * p[i].depth > 0 ? 28 - 2 * p[i].depth : 0, p[i].stage,
                     (long long)p[i].n_elements, (double)p[i].busy_ns / 1e6,
                     sum > 0 ? 100 * (double)p[i].busy_ns / sum : 0,
                     (double)p[i].wait_ns / 1e6);
        if (p[i].capacity > 0)
            ch__text_add(&t, " %d of %d", p[i].ready, p[i].capacity);
        ch__text_add(&t, "\n");
    }
    ch__text_add(&t, "%-28s %12s %10.1f %6.1f%% %10.1f\n", "all; the program", "", sum / 1e6,
                 sum > 0 ? 100.0 : 0, (double)waited_ns(it) / 1e6);
    ch__free(p);
    return ch__text_length(&t);
}
