/* save/staging.c -- staging memory: allocation, and the copy by all cores.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "save/staging.h"

#include <string.h>

#include "base/fault.h"

enum {
    PAGE = 4096,
    CHUNK = 4 << 20 /* bytes that a thread copies or touches at a time */
};

typedef struct copying {
    ch_staging         *staging;
    const ch_save_plan *plan;
} copying;

static void touch_chunk(void *arg, int i)
{
    ch_staging *s = arg;
    int64_t     from = (int64_t)i * CHUNK;

    memset(s->at + from, 0, (size_t)ch__min(CHUNK, s->bytes - from));
}

ch_status ch__staging_reserve(ch_staging *s, ch_team *team, int64_t bytes)
{
    ch_staging grown = {.bytes = ch__round_up(bytes, PAGE)};

    if (bytes <= s->bytes)
        return CH_OK;
    grown.memory = ch__alloc_untouched((size_t)grown.bytes + PAGE);
    if (grown.memory == NULL)
        return ch__fail(CH_RESOURCE_EXHAUSTED,
                        "checkpoint: no memory for a copy of the state (%lld bytes); set "
                        "staging_bytes to less (ch_write_options, ch_backup_options)",
                        (long long)bytes);
    grown.at = (char *)grown.memory + (PAGE - (uintptr_t)grown.memory % PAGE) % PAGE;
    ch__staging_drop(s);
    *s = grown;
    ch__team_run(team, (int)ch__units(s->bytes, CHUNK), touch_chunk, s);
    return CH_OK;
}

/* Returns the first staged item that ends after byte `at` of file 0. */
static int find_item(const ch_save_plan *p, int64_t at)
{
    int from = 0, to = p->first[1];

    while (from < to) {
        int middle = from + (to - from) / 2;

        if (p->item[middle].offset + p->item[middle].bytes <= at)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Copies the bytes of staged items that lie in chunk i of the image. */
static void copy_chunk(void *arg, int i)
{
    const copying      *c = arg;
    const ch_save_plan *p = c->plan;
    int64_t             from = p->staged_from + (int64_t)i * CHUNK;
    int64_t             to = ch__min(from + CHUNK, p->staged_from + p->staged_bytes);

    for (int k = find_item(p, from); k < p->first[1] && p->item[k].offset < to; k++) {
        const ch_ckpt_item *x = &p->item[k];
        int64_t             begin = x->offset > from ? x->offset : from;
        int64_t             end = ch__min(x->offset + x->bytes, to);

        if (p->source[k].from == CH_FROM_STAGING && begin < end)
            ch__save_plan_copy(p, k, begin - x->offset, end - begin,
                               c->staging->at + (begin - p->staged_from));
    }
}

void ch__staging_copy(ch_staging *s, ch_team *team, const ch_save_plan *p)
{
    copying c = {s, p};

    ch__team_run(team, (int)ch__units(p->staged_bytes, CHUNK), copy_chunk, &c);
}

void ch__staging_drop(ch_staging *s)
{
    ch__free_aligned(s->memory);
    *s = (ch_staging){.bytes = 0};
}
