/* test/job/test_server_state.c -- a server state alone: equal messages give equal states, and a
 * message that fails changes nothing.
 *
 * Two states process the same list of messages (journal), and are compared. Some messages are
 * repeated or late, and some fail because an allocation fails. The replies of a server are
 * tested in test_server.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/mem.h"
#include "base/protobuf.h"
#include "job/message.h"
#include "job/server/state.h"
#include "job/step_plan.h"
#include "steps.h"
#include "strategy/strategy.h"
#include "tensor/device.h"

enum { ROWS = 20, MOST_GIVEN = 8, LONGEST = 120 };

/* ---- messages ---- */

enum { W = 1, M, TABLE, STRANGER }; /* variables */
enum { PUSH = 1, SCATTER, BEND };   /* functions */

static ch_var *vars[STRANGER];

/* A graph over two variables, with a result. */
static void push(ch_step *s, void *arg)
{
    ch_node *m = ch_var_assign_add(s, vars[M], ch_step_in(s, 0));

    (void)arg;
    ch_step_out(s, "w", ch_var_assign_sub(s, vars[W], m));
}

static void scatter(ch_step *s, void *arg)
{
    (void)arg;
    ch_var_scatter_add(s, vars[TABLE], ch_step_in(s, 0), ch_step_in(s, 1));
}

static void bend(ch_step *s, void *arg)
{
    (void)arg;
    ch_var_assign(s, vars[W], ch_tanh(ch_var_read(s, vars[W])));
}

/* Creates the inputs of a function. Returns their number. The caller owns them. */
static int inputs_of(uint64_t function, unsigned seed, ch_tensor **out)
{
    if (function == PUSH)
        out[0] = t_noise(ch_shape_of(4, 3), seed);
    if (function == SCATTER) {
        out[0] = ids_of(5, ROWS);
        out[1] = t_noise(ch_shape_of(5, 3), seed);
    }
    return function == PUSH ? 1 : function == SCATTER ? 2 : 0;
}

static ch_message *spoken(uint32_t method, const ProtobufCMessage *m, int n, ch_tensor **t)
{
    ch_message *p = NULL;

    t_ok(ch__message_pack(method, m, n, t, &p));
    return p;
}

static ch_message *create(uint64_t number)
{
    Cohort__PsCreate m;
    ch_tensor       *t = NULL;
    char             name[16];

    cohort__ps_create__init(&m);
    snprintf(name, sizeof(name), "%s", ch_var_name(vars[number]));
    m.variable = number;
    m.name = name;
    t_ok(ch_var_get(vars[number], &t));
    return spoken(CH_PS_CREATE, &m.base, 1, &t);
}

static ch_message *define(uint64_t function)
{
    static const ch_step_fn step[] = {NULL, push, scatter, bend};
    Cohort__PsDefine        m;
    ch_tensor              *t[2];
    ch_tuple               *in = tuple_of(inputs_of(function, 1, t), t);
    ch_function            *f = t_function(step[function], NULL);
    ch_step_plan           *plan = NULL;
    const ch_remote_part   *r = NULL;
    uint64_t                number[2];
    void                   *bytes = NULL;
    ch_message             *p;

    cohort__ps_define__init(&m);
    ch_function_static_rows(f);
    t_ok(ch_strategy_run(NULL, f, in, NULL));
    t_ok(ch__step_plan_new(ch_function_graph(f), (int[]){0, 0}, (int[]){-1, -1}, &plan));
    for (int i = 0; i < plan->n_remote_parts; i++)
        if (plan->remote[i].kind == CH_REMOTE_UPDATE) {
            assert_null(r);
            r = &plan->remote[i];
        }
    assert_int_equal(r->graph->n_inputs, ch_tuple_count(in));
    for (int i = 0; i < r->n_variables; i++)
        for (uint64_t v = W; v < STRANGER; v++)
            if (strcmp(r->graph->resource[i].name, ch_var_name(vars[v])) == 0)
                number[i] = v;
    t_ok(ch_graph_encode(r->graph, &bytes, &m.graph.len));
    m.graph.data = bytes;
    m.update = function;
    m.n_variables = (size_t)r->n_variables;
    m.variables = number;
    p = spoken(CH_PS_DEFINE, &m.base, 0, NULL);
    ch_bytes_free(bytes);
    ch__step_plan_free(plan);
    ch_tuple_unref(in);
    ch_function_unref(f);
    return p;
}

typedef struct attempt {
    uint64_t step, retired, registration;
    int      n; /* number of its updates */
    uint64_t function[3];
    unsigned seed;
    bool     defer;
} attempt;

static ch_message *update(attempt at)
{
    Cohort__PsUpdate    m;
    Cohort__PsUpdateOne one[3], *list[3];
    ch_tensor          *t[6];
    int                 n = 0;
    char                worker[] = "worker/0";

    cohort__ps_update__init(&m);
    m.step = at.step;
    m.retired = at.retired;
    m.worker = worker;
    m.registration = at.registration;
    m.defer = at.defer;
    m.n_updates = (size_t)at.n;
    m.updates = list;
    for (int i = 0; i < at.n; i++) {
        cohort__ps_update_one__init(&one[i]);
        one[i].sequence = (uint32_t)i;
        one[i].update = at.function[i];
        one[i].inputs = (uint32_t)inputs_of(at.function[i], at.seed, t + n);
        n += (int)one[i].inputs;
        list[i] = &one[i];
    }
    return spoken(CH_PS_UPDATE, &m.base, n, t);
}

static ch_message *assign(uint64_t step, unsigned seed)
{
    Cohort__PsAssign m;
    uint64_t         number[2] = {W, TABLE};
    ch_tensor *t[2] = {t_noise(ch_shape_of(4, 3), seed), t_noise(ch_shape_of(ROWS, 3), seed)};

    cohort__ps_assign__init(&m);
    m.step = step;
    m.n_variables = 2;
    m.variables = number;
    return spoken(CH_PS_ASSIGN, &m.base, 2, t);
}

static ch_message *snapshot(uint64_t number, bool release)
{
    Cohort__PsSnapshot m;

    cohort__ps_snapshot__init(&m);
    m.snapshot = number;
    m.release = release;
    return spoken(CH_PS_SNAPSHOT, &m.base, 0, NULL);
}

static ch_message *fence(uint64_t registration)
{
    Cohort__PsFence m;
    char            worker[] = "worker/0";

    cohort__ps_fence__init(&m);
    m.worker = worker;
    m.registration = registration;
    return spoken(CH_PS_FENCE, &m.base, 0, NULL);
}

static ch_message *ping(uint64_t retired, uint64_t below, size_t n, uint64_t *live)
{
    Cohort__PsPing m;

    cohort__ps_ping__init(&m);
    m.retired = retired;
    m.below = below;
    m.n_live = n;
    m.live = live;
    return spoken(CH_PS_PING, &m.base, 0, NULL);
}

static ch_message *drop(uint64_t function)
{
    Cohort__PsFree m;

    cohort__ps_free__init(&m);
    m.first_update = function;
    m.n_updates = 1;
    return spoken(CH_PS_FREE, &m.base, 0, NULL);
}

static ch_message *hold(uint64_t round, size_t n, uint64_t *step)
{
    Cohort__PsHold m;

    cohort__ps_hold__init(&m);
    m.round = round;
    m.n_steps = n;
    m.steps = step;
    return spoken(CH_PS_HOLD, &m.base, 0, NULL);
}

static ch_message *settle(size_t n, uint64_t *step)
{
    Cohort__PsSettle m;

    cohort__ps_settle__init(&m);
    m.n_steps = n;
    m.steps = step;
    return spoken(CH_PS_SETTLE, &m.base, 0, NULL);
}

static ch_message *release(uint64_t round)
{
    Cohort__PsPing m;

    cohort__ps_ping__init(&m);
    m.released = round;
    return spoken(CH_PS_PING, &m.base, 0, NULL);
}

/* ---- processing messages, and comparing states ---- */

typedef struct told {
    ch_status  rc;
    int        n;
    ch_tensor *given[MOST_GIVEN];
    size_t     n_begun;
    uint64_t   begun[MOST_GIVEN];
    uint64_t   failed; /* step of a settle */
} told;

static void tell_update(ch_server_state *s, const ch_message *p, const Cohort__PsUpdate *m,
                        told *out)
{
    out->rc = ch__server_state_update(s, m, p->n_tensors, p->tensor);
    if (out->rc == CH_OK)
        out->n = ch__server_state_results(s, m, NULL, out->given);
    ch__server_state_retire(s, m->retired);
}

static void tell_ping(ch_server_state *s, const Cohort__PsPing *m, told *out)
{
    ch__server_state_retire(s, m->retired);
    out->rc = ch__server_state_live(s, m->below, m->n_live, m->live);
    if (out->rc == CH_OK)
        ch__server_state_release(s, m->released);
}

static void tell_assign(ch_server_state *s, const ch_message *p, const Cohort__PsAssign *m,
                        told *out)
{
    out->rc = ch__server_state_assign(s, m, p->n_tensors, p->tensor);
    ch__server_state_retire(s, m->retired);
}

/* Processes a message. The n-th allocation of the state fails; 0: none does. */
static told tell_failing(ch_server_state *s, const ch_message *p, int64_t n)
{
    told              out = {.rc = CH_OK};
    ProtobufCMessage *message = NULL;
    const void       *m;

    t_ok(ch__message_parse(p, ch__method(p->method)->request, &message));
    m = message;
    ch__mem_fail_at(n);
    switch (p->method) {
    case CH_PS_CREATE:
        out.rc = ch__server_state_create(s, m, p->n_tensors, p->tensor);
        break;
    case CH_PS_FREE:
        ch__server_state_remove(s, m);
        break;
    case CH_PS_DEFINE:
        out.rc = ch__server_state_define(s, m);
        break;
    case CH_PS_UPDATE:
        tell_update(s, p, m, &out);
        break;
    case CH_PS_FENCE:
        out.rc = ch__server_state_fence(s, m);
        break;
    case CH_PS_SNAPSHOT:
        out.rc = ch__server_state_snapshot(s, m);
        break;
    case CH_PS_ASSIGN:
        tell_assign(s, p, m, &out);
        break;
    case CH_PS_SETTLE:
        out.rc = ch__server_state_settle(s, m, &out.failed);
        break;
    case CH_PS_HOLD:
        out.rc = ch__server_state_hold(s, m, out.begun, &out.n_begun);
        break;
    default:
        tell_ping(s, m, &out);
    }
    ch__mem_fail_at(0);
    ch__protobuf_free(message);
    return out;
}

static told tell(ch_server_state *s, const ch_message *p)
{
    return tell_failing(s, p, 0);
}

static void forget(told *t)
{
    for (int i = 0; i < t->n; i++)
        ch_tensor_unref(t->given[i]);
    t->n = 0;
}

static void same_answers(told a, told b)
{
    assert_int_equal(a.rc, b.rc);
    assert_int_equal(a.n, b.n);
    for (int i = 0; i < a.n; i++)
        same_bits("what was given", a.given[i], b.given[i]);
    forget(&a);
    forget(&b);
}

static ch_status read_value(const ch_server_state *s, uint64_t number, uint64_t pinned,
                            ch_tensor **out)
{
    Cohort__PsRead m;

    cohort__ps_read__init(&m);
    m.n_variables = 1;
    m.variables = &number;
    m.snapshot = pinned;
    return ch__server_state_read(s, &m, out);
}

/* Compares the values that both states return, also from snapshots up to `last`. */
static void same_stores(const ch_server_state *a, const ch_server_state *b, uint64_t last)
{
    assert_int_equal(ch__server_state_version(a), ch__server_state_version(b));
    for (uint64_t pinned = 0; pinned <= last; pinned++)
        for (uint64_t v = W; v <= STRANGER; v++) {
            ch_tensor *x = NULL, *y = NULL;
            ch_status  rc = read_value(a, v, pinned, &x);

            assert_int_equal(rc, read_value(b, v, pinned, &y));
            if (rc == CH_OK)
                same_bits("a variable", x, y);
            ch_tensor_unref(x);
            ch_tensor_unref(y);
        }
}

/* ---- states with variables, and random messages ---- */

static int make_vars(void **state)
{
    (void)state;
    vars[W] = new_var("w", ch_shape_of(4, 3), 3);
    vars[M] = new_var("m", ch_shape_of(4, 3), 4);
    vars[TABLE] = new_var("table", ch_shape_of(ROWS, 3), 5);
    return 0;
}

static int drop_vars(void **state)
{
    (void)state;
    for (int i = W; i < STRANGER; i++)
        ch_var_unref(vars[i]);
    return 0;
}

/* Returns a state on its own device, as servers have. */
static ch_server_state *new_store(int i)
{
    ch_device       *device = NULL;
    ch_server_state *s = NULL;

    t_ok(ch__device_of_task("ps", i, 0, &device));
    t_ok(ch__server_state_new(device, 0, &s));
    return s;
}

typedef struct journal {
    int         n;
    ch_message *message[LONGEST];
} journal;

static void add(journal *j, ch_message *p)
{
    assert_true(j->n < LONGEST);
    j->message[j->n++] = p;
}

static void drop_journal(journal *j)
{
    for (int i = 0; i < j->n; i++)
        ch__message_unref(j->message[i]);
    j->n = 0;
}

static void add_beginning(journal *j)
{
    for (uint64_t i = W; i <= TABLE; i++)
        add(j, create(i));
    for (uint64_t i = PUSH; i <= BEND; i++)
        add(j, define(i));
}

static int roll(unsigned *seed, int below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (int)((*seed >> 8) % (unsigned)below);
}

static ch_message *draw_update(unsigned *seed, uint64_t step, uint64_t retired,
                               uint64_t registration)
{
    attempt at = {.step = step, .retired = retired, .registration = registration};

    at.registration -= roll(seed, 10) == 0;
    at.n = 1 + roll(seed, 3);
    for (int i = 0; i < at.n; i++)
        at.function[i] = PUSH + (uint64_t)roll(seed, 3);
    at.seed = (unsigned)roll(seed, 1000);
    return update(at);
}

/* Some of the later steps have ended as well. Whether a step has ended depends on its number
 * only, so no ping contradicts another. */
static ch_message *draw_ping(unsigned *seed, uint64_t *retired)
{
    uint64_t live[8], below;
    size_t   n = 0;

    *retired += (uint64_t)roll(seed, 4);
    below = *retired + (uint64_t)roll(seed, 8);
    for (uint64_t step = *retired; step < below; step++)
        if (step * 7 % 5 != 0)
            live[n++] = step;
    return ping(*retired, below, n, live);
}

/* Returns a random message for a random step. Some messages are repeated or late, or belong to
 * a fenced registration. */
static ch_message *draw(unsigned *seed, uint64_t *retired, uint64_t *registration,
                        uint64_t *pinned)
{
    uint64_t step = *retired + (uint64_t)roll(seed, 12) - (*retired > 3 ? 3 : 0);

    switch (roll(seed, 12)) {
    case 0:
        return assign(step, (unsigned)roll(seed, 1000));
    case 1:
        return draw_ping(seed, retired);
    case 2:
        return fence(*registration += (uint64_t)roll(seed, 2));
    case 3:
        return snapshot(++*pinned, false);
    case 4:
        return snapshot((uint64_t)roll(seed, (int)*pinned + 1), true);
    default:
        return draw_update(seed, step, *retired, *registration);
    }
}

/* ---- tests ---- */

/* The values of `a` are read and held between messages; those of `b` are not. `twice` also
 * processes earlier messages again, in random order. */
static void server_states_that_apply_equal_messages_hold_equal_bits(void **state)
{
    enum { CASES = 100, HELD = 3 };

    (void)state;
    for (unsigned c = 0; c < CASES; c++) {
        ch_server_state *a = new_store(0), *b = new_store(1), *twice = new_store(2);
        ch_tensor       *held[HELD] = {NULL};
        journal          j = {0};
        unsigned         seed = c;
        uint64_t         retired = 0, registration = 1, pinned = 0;
        int              first;

        add_beginning(&j);
        first = j.n;
        for (int i = 0; i < 80; i++)
            add(&j, i == 60 ? drop(BEND) : draw(&seed, &retired, &registration, &pinned));
        for (int i = 0; i < j.n; i++) {
            int  at = roll(&seed, HELD);
            told again;

            same_answers(tell(a, j.message[i]), tell(b, j.message[i]));
            again = tell(twice, j.message[i]);
            forget(&again);
            for (int k = 0; k < 2 && i > first; k++) {
                again = tell(twice, j.message[first + roll(&seed, i + 1 - first)]);
                forget(&again);
            }
            ch_tensor_unref(held[at]);
            held[at] = NULL;
            if (i >= first)
                t_ok(read_value(a, W + (uint64_t)roll(&seed, 3), 0, &held[at]));
        }
        assert_true(ch__server_state_version(a) > 20);
        same_stores(a, b, pinned);
        same_stores(a, twice, pinned);
        for (int i = 0; i < HELD; i++)
            ch_tensor_unref(held[i]);
        drop_journal(&j);
        ch__server_state_free(a);
        ch__server_state_free(b);
        ch__server_state_free(twice);
    }
}

/* Each message is first processed with each of its allocations failing in turn. When it has
 * succeeded, the second state processes it. */
static void live_with_little_memory(bool is_read)
{
    ch_server_state *s = new_store(0), *twin = new_store(1);
    ch_tensor       *held = NULL;
    journal          j = {0};
    uint64_t         one[3] = {PUSH, SCATTER, BEND};

    add_beginning(&j);
    add(&j, snapshot(1, false));
    for (uint64_t i = 0; i < 3; i++)
        add(&j, update((attempt){.step = i, .n = 1, .function = {one[i]}, .seed = 7}));
    add(&j, update((attempt){.step = 3, .n = 1, .function = {PUSH}, .seed = 8}));
    add(&j, assign(4, 9));
    add(&j,
        update((attempt){.step = 5, .n = 1, .function = {SCATTER}, .seed = 8, .defer = true}));
    add(&j, fence(2));
    add(&j, hold(1, 2, (uint64_t[]){2, 9}));
    add(&j, settle(1, (uint64_t[]){5}));
    add(&j, snapshot(2, false));
    for (int i = 0; i < j.n; i++) {
        int64_t n = 0;
        told    t;

        if (is_read && i >= TABLE) {
            ch_tensor_unref(held);
            t_ok(read_value(s, W, 0, &held));
        }
        while ((t = tell_failing(s, j.message[i], ++n)).rc != CH_OK) {
            assert_int_equal(t.rc, CH_RESOURCE_EXHAUSTED);
            same_stores(s, twin, 2);
        }
        assert_true(n > 1);
        same_answers(t, tell(twin, j.message[i]));
        same_stores(s, twin, 2);
    }
    ch_tensor_unref(held);
    drop_journal(&j);
    ch__server_state_free(s);
    ch__server_state_free(twin);
}

static void server_state_is_unchanged_when_a_message_lacks_memory(void **state)
{
    int64_t live = 0;

    (void)state;
    for (int i = 0; i < 4; i++) { /* workspaces of devices are allocated once */
        if (i == 2)
            live = ch__mem_live();
        live_with_little_memory(i % 2);
    }
    assert_int_equal(ch__mem_live(), live);
}

/* If the second update of an attempt fails, the first is not applied again when the attempt is
 * repeated. */
static void server_state_resumes_a_repeated_attempt_after_applied_updates(void **state)
{
    ch_server_state *s = new_store(0), *twin = new_store(1);
    journal          j = {0};
    ch_message      *p =
        update((attempt){.step = 1, .n = 3, .function = {PUSH, SCATTER, PUSH}, .seed = 11});
    uint64_t version = 0;
    int      n_between = 0;
    told     t;

    (void)state;
    add_beginning(&j);
    for (int i = 0; i < j.n; i++)
        same_answers(tell(s, j.message[i]), tell(twin, j.message[i]));
    for (int64_t n = 1; (t = tell_failing(s, p, n)).rc != CH_OK; n++) {
        assert_int_equal(t.rc, CH_RESOURCE_EXHAUSTED);
        assert_true(ch__server_state_version(s) >= version);
        version = ch__server_state_version(s);
        n_between += version == 1 || version == 2;
    }
    assert_true(n_between > 0);
    same_answers(t, tell(twin, p));
    same_stores(s, twin, 0);
    ch__message_unref(p);
    drop_journal(&j);
    ch__server_state_free(s);
    ch__server_state_free(twin);
}

/* Steps that have ended are rejected, also if they are above the retired number, and whatever
 * earlier or later pings contain. */
static void server_state_rejects_steps_that_have_ended(void **state)
{
    static const struct {
        uint64_t below, n, live[3];
    } said[] = {
        {0, 0, {0}}, {12, 3, {5, 8, 10}}, {15, 2, {8, 13}}, {12, 3, {5, 8, 10}}, {0, 0, {0}}};
    ch_server_state *s = new_store(0);
    journal          j = {0};
    told             t;

    (void)state;
    add_beginning(&j);
    for (int i = 0; i < j.n; i++)
        (void)tell(s, j.message[i]);
    drop_journal(&j);
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        uint64_t live[3];

        memcpy(live, said[i].live, sizeof(live));
        add(&j, ping(5, said[i].below, said[i].n, live));
        t = tell(s, j.message[j.n - 1]);
        t_ok(t.rc);
    }
    for (uint64_t step = 4; step < 18; step++) {
        bool is_live = step == 8 || step == 13 || step >= 15;

        add(&j, update((attempt){.step = step, .registration = 1, .n = 1, .function = {PUSH}}));
        t = tell(s, j.message[j.n - 1]);
        assert_int_equal(t.rc, is_live ? CH_OK : CH_ABORTED);
        forget(&t);
    }
    add(&j, ping(5, 20, 2, (uint64_t[]){9, 9}));
    assert_int_equal(tell(s, j.message[j.n - 1]).rc, CH_INVALID_ARGUMENT);
    drop_journal(&j);
    ch__server_state_free(s);
}

static ch_status tell_step(ch_server_state *s, uint64_t step)
{
    ch_message *p =
        update((attempt){.step = step, .registration = 1, .n = 1, .function = {PUSH}});
    told t = tell(s, p);

    forget(&t);
    ch__message_unref(p);
    return t.rc;
}

/* Takes over the message. Returns the steps that had begun as digits: 35 for steps 3 and 5. */
static uint64_t begun_of(ch_server_state *s, ch_message *p)
{
    told     t = tell(s, p);
    uint64_t digits = 0;

    t_ok(t.rc);
    for (size_t i = 0; i < t.n_begun; i++)
        digits = 10 * digits + t.begun[i];
    ch__message_unref(p);
    return digits;
}

/* Between a hold and its release no update of a held step is applied, so that the reply to the
 * hold stays correct. */
static void updates_of_held_steps_are_refused_until_the_hold_is_released(void **state)
{
    ch_server_state *s = new_store(0);
    journal          j = {0};

    (void)state;
    add_beginning(&j);
    for (int i = 0; i < j.n; i++)
        (void)tell(s, j.message[i]);
    drop_journal(&j);
    t_ok(tell_step(s, 3));
    t_ok(tell_step(s, 5));
    assert_int_equal(begun_of(s, hold(1, 4, (uint64_t[]){2, 3, 4, 5})), 35);
    for (uint64_t step = 2; step <= 5; step++)
        assert_int_equal(tell_step(s, step), CH_ABORTED);
    t_ok(tell_step(s, 6));
    assert_int_equal(ch__server_state_version(s), 3);
    assert_int_equal(begun_of(s, hold(1, 4, (uint64_t[]){2, 3, 4, 5})), 35); /* repeated */
    (void)begun_of(s, release(0));
    assert_int_equal(tell_step(s, 2), CH_ABORTED);
    (void)begun_of(s, release(1));
    t_ok(tell_step(s, 2));
    t_ok(tell_step(s, 3)); /* repeated: the update is not applied twice */
    assert_int_equal(ch__server_state_version(s), 4);
    (void)begun_of(s, hold(1, 1, (uint64_t[]){7})); /* late: this hold was released */
    t_ok(tell_step(s, 7));
    assert_int_equal(begun_of(s, hold(2, 1, (uint64_t[]){8})), 0);
    assert_int_equal(begun_of(s, hold(3, 1, (uint64_t[]){9})), 0); /* replaces the hold */
    t_ok(tell_step(s, 8));
    assert_int_equal(tell_step(s, 9), CH_ABORTED);
    ch__server_state_free(s);
}

/* Tells a message and frees it. */
static told tell_once(ch_server_state *s, ch_message *p)
{
    told t = tell(s, p);

    forget(&t);
    ch__message_unref(p);
    return t;
}

/* Makes n states with equal variables and updates. */
static void new_filled_stores(int n, ch_server_state **s)
{
    journal j = {0};

    add_beginning(&j);
    for (int i = 0; i < n; i++) {
        s[i] = new_store(i);
        for (int k = 0; k < j.n; k++)
            t_ok(tell(s[i], j.message[k]).rc);
    }
    drop_journal(&j);
}

/* Returns a random attempt of a step. Its updates have no results, so they can be deferred. */
static attempt draw_attempt(unsigned *seed, uint64_t step)
{
    attempt at = {.step = step, .registration = 1, .n = 1 + roll(seed, 3)};

    for (int i = 0; i < at.n; i++)
        at.function[i] = SCATTER + (uint64_t)roll(seed, 2);
    at.seed = (unsigned)roll(seed, 1000);
    return at;
}

/* Deferred updates arrive in any order, and some arrive twice. When they are settled, the state
 * has the bits of a state that has applied the updates of each step at once, in the order of
 * the steps. */
static void deferred_updates_are_applied_in_the_order_of_steps(void **state)
{
    enum { CASES = 50, STEPS = 8 };

    (void)state;
    for (unsigned c = 0; c < CASES; c++) {
        ch_server_state *both[2], *now, *later;
        attempt          at[STEPS];
        uint64_t         step[STEPS];
        unsigned         seed = c;
        size_t           n = 1 + (size_t)roll(&seed, STEPS - 1);

        new_filled_stores(2, both);
        now = both[0];
        later = both[1];
        for (int i = 0; i < STEPS; i++) {
            step[i] = 3 + 2 * (uint64_t)i;
            at[i] = draw_attempt(&seed, step[i]);
            t_ok(tell_once(now, update(at[i])).rc);
        }
        for (int i = STEPS - 1; i >= 0; i--) { /* a random order */
            int     k = roll(&seed, i + 1);
            attempt other = at[k];

            at[k] = at[i];
            at[i] = other;
            at[i].defer = true;
            t_ok(tell_once(later, update(at[i])).rc);
            t_ok(tell_once(later, update(at[i + roll(&seed, STEPS - i)])).rc);
        }
        assert_int_equal(ch__server_state_version(later), 0);
        t_ok(tell_once(later, fence(2)).rc); /* does not concern updates that were accepted */
        t_ok(tell_once(later, settle(n, step)).rc);
        t_ok(tell_once(later, settle(STEPS, step)).rc);
        t_ok(tell_once(later, settle(n, step)).rc); /* late */
        same_stores(now, later, 0);
        ch__server_state_free(now);
        ch__server_state_free(later);
    }
}

/* A deferred update counts as applied: its step has begun. If the step ends without being
 * settled, the update is dropped. */
static void deferred_updates_belong_to_steps_that_have_begun(void **state)
{
    ch_server_state *s = NULL;
    attempt          at = {.step = 4, .n = 1, .function = {BEND}, .defer = true};

    (void)state;
    new_filled_stores(1, &s);
    t_ok(tell_once(s, update(at)).rc);
    at.step = 6;
    t_ok(tell_once(s, update(at)).rc);
    assert_int_equal(begun_of(s, hold(1, 3, (uint64_t[]){4, 5, 6})), 46);
    t_ok(tell_once(s, ping(4, 6, 1, (uint64_t[]){5})).rc); /* step 4 has ended */
    t_ok(tell_once(s, settle(2, (uint64_t[]){4, 6})).rc);
    assert_int_equal(ch__server_state_version(s), 1);
    at.step = 7;
    at.function[0] = PUSH;
    assert_int_equal(tell_once(s, update(at)).rc, CH_INVALID_ARGUMENT); /* it has a result */
    assert_int_equal(tell_once(s, settle(2, (uint64_t[]){9, 8})).rc, CH_INVALID_ARGUMENT);
    ch__server_state_free(s);
}

/* An update that fails when it is settled names its step. The steps before it are settled; the
 * others are settled when they are named without it. */
static void settle_stops_at_the_step_whose_update_fails(void **state)
{
    ch_server_state *s = NULL;
    attempt          at = {.n = 1, .function = {BEND}, .defer = true};
    told             t;

    (void)state;
    new_filled_stores(1, &s);
    for (at.step = 1; at.step <= 3; at.step++) {
        at.function[0] = at.step == 2 ? SCATTER : BEND;
        t_ok(tell_once(s, update(at)).rc);
    }
    t_ok(tell_once(s, drop(SCATTER)).rc);
    for (int i = 0; i < 2; i++) { /* the reply may be lost, so the call may be repeated */
        t = tell_once(s, settle(3, (uint64_t[]){1, 2, 3}));
        assert_int_equal(t.rc, CH_NOT_FOUND);
        assert_int_equal(t.failed, 2);
        assert_int_equal(ch__server_state_version(s), 1);
    }
    t = tell_once(s, settle(1, (uint64_t[]){3}));
    t_ok(t.rc);
    assert_int_equal(t.failed, 0);
    assert_int_equal(ch__server_state_version(s), 2);
    ch__server_state_free(s);
}

static void server_state_returns_rows_of_all_variables_or_none(void **state)
{
    Cohort__PsRows   m;
    ch_server_state *s = new_store(0);
    ch_message      *w = create(W), *table = create(TABLE);
    uint64_t         number[3] = {W, TABLE, STRANGER};
    ch_tensor       *few = ids_of(3, 4), *many = ids_of(9, ROWS), *out[3];
    ch_tensor       *ids[3] = {few, many, few};
    ch_status        rc = CH_UNAVAILABLE;
    int64_t          live;
    int              n_failed = 0;

    (void)state;
    cohort__ps_rows__init(&m);
    m.variables = number;
    t_ok(tell(s, w).rc);
    t_ok(tell(s, table).rc);
    live = ch__mem_live();
    m.n_variables = 3;
    t_refused(ch__server_state_rows(s, &m, 3, ids, out), CH_NOT_FOUND, "variable 4", "no");
    assert_int_equal(ch__mem_live(), live);
    m.n_variables = 2;
    for (int64_t n = 1; rc != CH_OK; n++) {
        ch__mem_fail_at(n);
        rc = ch__server_state_rows(s, &m, 2, ids, out);
        ch__mem_fail_at(0);
        n_failed += rc == CH_RESOURCE_EXHAUSTED;
        assert_true(rc == CH_OK || ch__mem_live() == live);
    }
    assert_true(n_failed > 2);
    assert_true(ch_shape_equal(ch_tensor_shape(out[0]), ch_shape_of(3, 3)));
    assert_true(ch_shape_equal(ch_tensor_shape(out[1]), ch_shape_of(9, 3)));
    ch_tensor_unref(out[0]);
    ch_tensor_unref(out[1]);
    ch_tensor_unref(few);
    ch_tensor_unref(many);
    ch__message_unref(w);
    ch__message_unref(table);
    ch__server_state_free(s);
}

/* ---- regions ---- */

static ch_status read_region(ch_server_state *s, size_t n_begin, int64_t *begin, size_t n_size,
                             int64_t *size, ch_tensor **out)
{
    Cohort__PsRead   m;
    Cohort__PsRegion r, *list[] = {&r, &r};
    uint64_t         variable = W;

    cohort__ps_read__init(&m);
    cohort__ps_region__init(&r);
    r.n_begin = n_begin;
    r.begin = begin;
    r.n_size = n_size;
    r.size = size;
    m.n_variables = 1;
    m.variables = &variable;
    m.n_regions = begin == NULL ? 2 : 1;
    m.regions = list;
    return ch__server_state_read(s, &m, out);
}

static ch_status assign_region(ch_server_state *s, uint64_t step, int64_t *begin, int64_t *size,
                               ch_tensor *value)
{
    Cohort__PsAssign m;
    Cohort__PsRegion r, *list[] = {&r, &r};
    uint64_t         variable[] = {W, W};

    cohort__ps_assign__init(&m);
    cohort__ps_region__init(&r);
    r.n_begin = r.n_size = 2;
    r.begin = begin;
    r.size = size;
    m.step = step;
    m.n_variables = m.n_regions = 2; /* of the same variable */
    m.variables = variable;
    m.regions = list;
    return ch__server_state_assign(s, &m, 2, (ch_tensor *[]){value, value});
}

static void server_state_rejects_regions_that_do_not_fit(void **state)
{
    ch_server_state *s = new_store(0);
    ch_tensor       *out = NULL, *value = t_noise(ch_shape_of(2, 1), 3);
    ch_message      *p = create(W);

    (void)state;
    (void)tell(s, p);
    t_ok(read_region(s, 2, (int64_t[]){1, 1}, 2, (int64_t[]){2, 1}, &out));
    assert_true(ch_shape_equal(ch_tensor_shape(out), ch_shape_of(2, 1)));
    ch_tensor_unref(out);
    out = NULL;
    t_refused(read_region(s, 1, (int64_t[]){1}, 2, (int64_t[]){2, 1}, &out),
              CH_INVALID_ARGUMENT, "begin has 1 axes and size 2", "2");
    t_refused(read_region(s, 2, (int64_t[]){3, 0}, 2, (int64_t[]){2, 1}, &out),
              CH_INVALID_ARGUMENT, "outside", "region");
    t_refused(read_region(s, 2, (int64_t[]){-1, 0}, 2, (int64_t[]){2, 1}, &out),
              CH_INVALID_ARGUMENT, "outside", "region");
    t_refused(read_region(s, 2, (int64_t[]){1, 0}, 2, (int64_t[]){INT64_MAX, 1}, &out),
              CH_INVALID_ARGUMENT, "outside", "region");
    t_refused(read_region(s, 0, NULL, 0, NULL, &out), CH_INVALID_ARGUMENT, "2 regions",
              "1 variables");
    t_refused(assign_region(s, 7, (int64_t[]){0, 0}, (int64_t[]){1, 2}, value),
              CH_INVALID_ARGUMENT, "variable", "is");
    assert_null(out);
    /* Two regions of a variable in a message, while a reader holds the value. */
    t_ok(read_region(s, 2, (int64_t[]){0, 0}, 2, (int64_t[]){4, 3}, &out));
    t_ok(assign_region(s, 8, (int64_t[]){2, 2}, (int64_t[]){2, 1}, value));
    ch_tensor_unref(out);
    t_ok(read_region(s, 2, (int64_t[]){2, 2}, 2, (int64_t[]){2, 1}, &out));
    assert_memory_equal(ch_tensor_data(out), ch_tensor_data(value), 2 * sizeof(float));
    ch_tensor_unref(out);
    ch_tensor_unref(value);
    ch__message_unref(p);
    ch__server_state_free(s);
}

static void server_state_assigns_two_regions_of_a_string_variable(void **state)
{
    const ch_str     words[] = {{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}}, *now;
    int64_t          begin[] = {0, 2}, size = 1;
    uint64_t         variable[] = {W, W};
    char             name[] = "words";
    ch_server_state *s = new_store(0);
    ch_tensor       *t = NULL, *value[2] = {NULL};
    Cohort__PsCreate create_words;
    Cohort__PsAssign m;
    Cohort__PsRegion r[2], *list[] = {&r[0], &r[1]};
    ch_message      *p;

    (void)state;
    cohort__ps_create__init(&create_words);
    create_words.variable = W;
    create_words.name = name;
    t_ok(ch_tensor_copy_of(CH_STR, ch_shape_of(4), words, &t));
    p = spoken(CH_PS_CREATE, &create_words.base, 1, &t);
    t_ok(tell(s, p).rc);
    cohort__ps_assign__init(&m);
    m.step = 1;
    m.n_variables = m.n_regions = 2;
    m.variables = variable;
    m.regions = list;
    for (int i = 0; i < 2; i++) {
        cohort__ps_region__init(&r[i]);
        r[i].n_begin = r[i].n_size = 1;
        r[i].begin = &begin[i];
        r[i].size = &size;
        t_ok(ch_tensor_copy_of(CH_STR, ch_shape_of(1),
                               &(ch_str){i == 0 ? "first" : "second", i == 0 ? 5 : 6},
                               &value[i]));
    }
    t_ok(ch__server_state_assign(s, &m, 2, value));
    t = NULL;
    t_ok(read_value(s, W, 0, &t));
    now = ch_tensor_data(t);
    assert_memory_equal(now[0].data, "first", 5);
    assert_memory_equal(now[1].data, "b", 1);
    assert_memory_equal(now[2].data, "second", 6);
    ch_tensor_unref(t);
    ch_tensor_unref(value[0]);
    ch_tensor_unref(value[1]);
    ch__message_unref(p);
    ch__server_state_free(s);
}

/* A caller that still has a region of a large variable must not make the server copy all of it
 * at the next write. */
static void region_that_was_read_does_not_share_the_memory_of_its_variable(void **state)
{
    ch_server_state   *s = NULL;
    ch_device         *device = NULL;
    ch_tensor         *whole = t_noise(ch_shape_of(100, 10), 3), *got[2] = {NULL};
    int64_t            begin[] = {10, 0}, size[] = {2, 10};
    uint64_t           number = 1;
    char               name[] = "v";
    Cohort__PsCreate   create_v;
    Cohort__PsRead     m;
    Cohort__PsRegion   region, *list = &region;
    Cohort__PsSnapshot taken;

    (void)state;
    cohort__ps_create__init(&create_v);
    cohort__ps_read__init(&m);
    cohort__ps_region__init(&region);
    cohort__ps_snapshot__init(&taken);
    create_v.variable = number;
    create_v.name = name;
    t_ok(ch__device_of_task("ps", 0, 0, &device));
    t_ok(ch__server_state_new(device, 0, &s));
    t_ok(ch__server_state_create(s, &create_v, 1, &whole));
    region.n_begin = region.n_size = 2;
    region.begin = begin;
    region.size = size;
    m.n_variables = m.n_regions = 1;
    m.variables = &number;
    m.regions = &list;
    t_ok(ch__server_state_read(s, &m, &got[0]));
    assert_int_equal(got[0]->buffer->bytes, 2 * 10 * 4);
    taken.snapshot = m.snapshot =
        1; /* values of a snapshot do not change, so they are shared */
    t_ok(ch__server_state_snapshot(s, &taken));
    t_ok(ch__server_state_read(s, &m, &got[1]));
    assert_int_equal(got[1]->buffer->bytes, 100 * 10 * 4);
    assert_memory_equal(got[0]->data, got[1]->data, 2 * 10 * 4);
    for (int i = 0; i < 2; i++)
        ch_tensor_unref(got[i]);
    ch_tensor_unref(whole);
    ch__server_state_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(server_states_that_apply_equal_messages_hold_equal_bits),
        cmocka_unit_test(server_state_is_unchanged_when_a_message_lacks_memory),
        cmocka_unit_test(server_state_resumes_a_repeated_attempt_after_applied_updates),
        cmocka_unit_test(server_state_rejects_steps_that_have_ended),
        cmocka_unit_test(updates_of_held_steps_are_refused_until_the_hold_is_released),
        cmocka_unit_test(deferred_updates_are_applied_in_the_order_of_steps),
        cmocka_unit_test(deferred_updates_belong_to_steps_that_have_begun),
        cmocka_unit_test(settle_stops_at_the_step_whose_update_fails),
        cmocka_unit_test(server_state_returns_rows_of_all_variables_or_none),
        cmocka_unit_test(server_state_rejects_regions_that_do_not_fit),
        cmocka_unit_test(server_state_assigns_two_regions_of_a_string_variable),
        cmocka_unit_test(region_that_was_read_does_not_share_the_memory_of_its_variable),
    };

    return cmocka_run_group_tests(tests, make_vars, drop_vars);
}
