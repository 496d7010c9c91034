/* fuzz/step_plan.c -- ch__step_plan_decode on arbitrary bytes.
 *
 * The encoded bytes of a decoded step plan must decode to the same plan. Inputs start as real
 * steps, with or without shards. Then decode/alter.c changes fields of the message and of its
 * graphs, or libFuzzer changes bytes. Most of the time is spent on decoding graphs.
 * fuzz/decode.c tests these, so the graphs here have few calls and the inputs are short.
 *
 * covers: src/job/step_plan/codec.c
 * longest: 1400
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "job/step_plan.h"

#include "base/mem.h"
#include "decode/decode.h"
#include "job/job.pb-c.h"
#include "job/make.h"

enum { MOST_SHARDS = 3 };

static blob start[PLANS * MOST_SHARDS];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    for (int i = 0; i < PLANS * MOST_SHARDS; i++)
        start[i] = make_plan(i % PLANS, 1 + i / PLANS);
    return 0;
}

static void check_again(const ch_placed_plan *r)
{
    ch_placed_plan back = {0};
    void          *bytes = NULL, *again = NULL;
    size_t         n = 0, m = 0;

    MUST(ch__step_plan_encode(r, &bytes, &n) == CH_OK);
    MUST(ch__step_plan_decode(bytes, n, &back) == CH_OK);
    MUST(ch__step_plan_encode(&back, &again, &m) == CH_OK);
    MUST(n == m && memcmp(bytes, again, n) == 0);
    ch__step_plan_free(back.plan);
    ch__free(bytes);
    ch__free(again);
}

/* Decodes and encodes while an allocation fails. */
static void check_memory(const uint8_t *data, size_t size, unsigned which)
{
    ch_placed_plan r = {0};
    void          *bytes = NULL;
    size_t         n = 0;

    ch__mem_fail_at(1 + which % 128);
    if (ch__step_plan_decode(data, size, &r) == CH_OK) {
        if (ch__step_plan_encode(&r, &bytes, &n) == CH_OK)
            ch__free(bytes);
        ch__step_plan_free(r.plan);
    }
    ch__mem_fail_at(0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t        live = ch__mem_live();
    unsigned       which = fuzz_hash(data, size);
    ch_placed_plan r = {0};
    ch_status      rc;

    if (which % 16 == 0)
        ch__mem_watch(true);
    rc = ch__step_plan_decode(data, size, &r);
    if (which % 16 == 0) {
        MUST(ch__mem_peak() <= (int64_t)size + (16 << 20));
        ch__mem_watch(false);
    }
    if (rc == CH_OK) {
        if (which % 4 == 1)
            check_again(&r);
        ch__step_plan_free(r.plan);
    }
    if (which % 8 == 2)
        check_memory(data, size, which / 8);
    MUST(ch__mem_live() == live);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    dice        d = {seed};
    const blob *b = &start[roll(&d, PLANS * MOST_SHARDS)];
    size_t      n = 0;

    switch (roll(&d, 16)) {
    case 0:
        if (b->size > max_size)
            return size;
        memcpy(data, b->data, b->size);
        return b->size;
    case 1:
    case 2:
        return LLVMFuzzerMutate(data, size, max_size);
    default:
        n = alter(&d, &cohort__step_plan__descriptor, data, size, max_size);
    }
    return n > 0 ? n : LLVMFuzzerMutate(data, size, max_size);
}
