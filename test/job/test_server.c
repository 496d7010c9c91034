/* test/job/test_server.c -- a parameter server alone: its replies, the updates that it applies,
 * and the calls that it rejects.
 *
 * A client task (asker) calls the server in a simulated network and waits for each reply. The
 * tests repeat, delay and reorder calls, and let allocations fail. The server state
 * (job/server/state.h) is tested alone in test_server_state.c.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "../strategy/help.h"
#include "base/mem.h"
#include "base/protobuf.h"
#include "graph/function.h"
#include "job/message.h"
#include "job/server.h"
#include "job/step_plan.h"
#include "strategy/strategy.h"
#include "tensor/device.h"

/* ---- the client ---- */

typedef struct asker {
    ch_net     *net;
    ch_task    *task, *server;
    uint64_t    n_asked;
    int64_t     fail_at; /* number of the allocation of a call that fails; 0: none */
    bool        has_ended;
    ch_ending   ending;
    ch_message *answer;
    ch_fault    fault;
} asker;

static ch_server_options options;

static void on_answer(void *self, const ch_net_event *e, int64_t now, ch_outbox *outbox)
{
    asker *a = self;

    (void)now;
    (void)outbox;
    if (e->kind != CH_EVENT_REPLY || e->id != a->n_asked)
        return;
    a->has_ended = true;
    a->ending = e->ending;
    if (e->ending == CH_ENDED_OK)
        a->answer = ch__message_ref(e->message);
    else if (e->fault != NULL) {
        a->fault = *e->fault;
    }
}

static void close_asker(void *self)
{
    (void)self;
}

static ch_status make_asker(void *arg, ch_task *t, uint64_t incarnation, ch_outbox *outbox,
                            void **self)
{
    (void)t;
    (void)incarnation;
    (void)outbox;
    *self = arg;
    return CH_OK;
}

static bool has_ended(void *arg)
{
    return ((asker *)arg)->has_ended;
}

static void begin(asker *a, bool encode)
{
    static const ch_task_ops ops = {on_answer, close_asker};

    memset(a, 0, sizeof(*a));
    t_ok(ch__device_of_task("ps", 0, 0, &options.device));
    t_ok(ch__net_sim(&(ch_sim_options){.seed = 1, .encode = encode}, &a->net));
    t_ok(ch__task_start(
        a->net,
        &(ch_task_options){
            .name = "ps/0", .ops = &ch__server_ops, .make = ch__server_make, .arg = &options},
        &a->server));
    t_ok(ch__task_start(
        a->net,
        &(ch_task_options){.name = "asker/0", .ops = &ops, .make = make_asker, .arg = a},
        &a->task));
}

static void end(asker *a)
{
    ch__message_unref(a->answer);
    ch__net_free(a->net);
}

/* Calls the server. Borrows the tensors. Returns the code of the reply; its tensors are in
 * a->answer. */
static ch_status ask(asker *a, uint32_t method, const ProtobufCMessage *m, int n,
                     ch_tensor *const *t)
{
    ch_message *p = NULL;
    ch_outbox  *outbox;

    for (int i = 0; i < n; i++)
        (void)ch_tensor_ref(t[i]);
    t_ok(ch__message_pack(method, m, n, t, &p));
    ch__message_unref(a->answer);
    a->answer = NULL;
    a->has_ended = false;
    a->n_asked++;
    outbox = ch__task_enter(a->task);
    ch__outbox_call(
        outbox, ch__task_link(a->task, "ps/0"), p,
        &(ch_call_options){.id = a->n_asked, .deadline = ch__task_now(a->task) + 1000000000});
    ch__mem_fail_at(a->fail_at);
    t_ok(ch__task_wait(a->task, has_ended, a, 10000, "the server"));
    ch__mem_fail_at(0);
    ch__task_leave(a->task);
    return a->ending == CH_ENDED_OK      ? CH_OK
           : a->ending == CH_ENDED_ERROR ? ch__fault_raise(&a->fault)
                                         : CH_UNAVAILABLE;
}

static ch_status create(asker *a, uint64_t number, const char *name, ch_tensor *t)
{
    Cohort__PsCreate m;
    char             text[32];

    cohort__ps_create__init(&m);
    snprintf(text, sizeof(text), "%s", name);
    m.variable = number;
    m.name = text;
    return ask(a, CH_PS_CREATE, &m.base, 1, &t);
}

static ch_status read_pinned(asker *a, uint64_t number, uint64_t snapshot)
{
    Cohort__PsRead m;

    cohort__ps_read__init(&m);
    m.n_variables = 1;
    m.variables = &number;
    m.snapshot = snapshot;
    return ask(a, CH_PS_READ, &m.base, 0, NULL);
}

static float first_of(asker *a, uint64_t number, uint64_t snapshot)
{
    t_ok(read_pinned(a, number, snapshot));
    assert_int_equal(a->answer->n_tensors, 1);
    return *(const float *)ch_tensor_data(a->answer->tensor[0]);
}

/* ---- updates, as steps send them ---- */

static void add_step(ch_step *s, void *arg)
{
    ch_step_out(s, "is", ch_var_assign_add(s, arg, ch_step_in(s, 0)));
}

static void add_silently(ch_step *s, void *arg)
{
    ch_var_assign_add(s, arg, ch_step_in(s, 0));
}

/* Defines function 1 on variable 1: the graph of v += x, which also returns the new v if the
 * step does. */
static ch_status define(asker *a, ch_step_fn step, ch_var *v, ch_tensor *x)
{
    Cohort__PsDefine m;
    ch_function     *f = NULL;
    ch_tuple        *in = NULL;
    ch_step_plan    *plan = NULL;
    uint64_t         number = 1;
    void            *bytes = NULL;
    ch_status        rc;

    cohort__ps_define__init(&m);
    t_ok(ch_function_new("add", step, v, &f));
    ch_function_static_rows(f);
    t_ok(ch_tuple_of(1, &x, &in));
    t_ok(ch_strategy_run(NULL, f, in, NULL));
    t_ok(ch__step_plan_new(ch_function_graph(f), (int[]){0}, (int[]){-1}, &plan));
    assert_int_equal(plan->n_remote_parts, 1);
    t_ok(ch_graph_encode(plan->remote[0].graph, &bytes, &m.graph.len));
    m.graph.data = bytes;
    m.update = 1;
    m.n_variables = 1;
    m.variables = &number;
    rc = ask(a, CH_PS_DEFINE, &m.base, 0, NULL);
    ch_bytes_free(bytes);
    ch__step_plan_free(plan);
    ch_tuple_unref(in);
    ch_function_unref(f);
    return rc;
}

typedef struct attempt {
    uint64_t step, registration, retired, function;
    uint32_t sequence;
} attempt;

static ch_status update(asker *a, attempt at, int n, ch_tensor *const *x)
{
    Cohort__PsUpdate    m;
    Cohort__PsUpdateOne one, *list = &one;
    char                worker[] = "worker/0";

    cohort__ps_update__init(&m);
    cohort__ps_update_one__init(&one);
    m.step = at.step;
    m.worker = worker;
    m.registration = at.registration;
    m.retired = at.retired;
    m.n_updates = 1;
    m.updates = &list;
    one.update = at.function == 0 ? 1 : at.function;
    one.sequence = at.sequence;
    one.inputs = (uint32_t)n;
    return ask(a, CH_PS_UPDATE, &m.base, n, x);
}

static ch_status assign(asker *a, attempt at, size_t n, uint64_t *variable, ch_tensor *const *x)
{
    Cohort__PsAssign m;

    cohort__ps_assign__init(&m);
    m.step = at.step;
    m.retired = at.retired;
    m.n_variables = n;
    m.variables = variable;
    return ask(a, CH_PS_ASSIGN, &m.base, (int)n, x);
}

static ch_status snapshot(asker *a, uint64_t number, bool release)
{
    Cohort__PsSnapshot m;

    cohort__ps_snapshot__init(&m);
    m.snapshot = number;
    m.release = release;
    return ask(a, CH_PS_SNAPSHOT, &m.base, 0, NULL);
}

static ch_status ping(asker *a, uint64_t retired)
{
    Cohort__PsPing m;

    cohort__ps_ping__init(&m);
    m.retired = retired;
    return ask(a, CH_PS_PING, &m.base, 0, NULL);
}

typedef struct setting {
    asker      a;
    ch_var    *v;
    ch_tensor *zero, *one;
} setting;

static void set_up(setting *s)
{
    static const float zeros[3] = {0, 0, 0}, ones[3] = {1, 1, 1};

    begin(&s->a, true);
    s->zero = t_f32(ch_shape_of(3), zeros);
    s->one = t_f32(ch_shape_of(3), ones);
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "v", .initial = s->zero}, &s->v));
    t_ok(create(&s->a, 1, "v", s->zero));
    t_ok(define(&s->a, add_step, s->v, s->one));
}

static void tear_down(setting *s)
{
    ch_var_unref(s->v);
    ch_tensor_unref(s->zero);
    ch_tensor_unref(s->one);
    end(&s->a);
}

/* ---- tests ---- */

/* UP-1, UP-5: n additions are applied n times; each reply has the value after its addition. */
static void server_applies_an_update_and_returns_its_result(void **state)
{
    setting s;

    (void)state;
    set_up(&s);
    for (int i = 0; i < 5; i++) {
        t_ok(update(&s.a, (attempt){.step = (uint64_t)i}, 1, &s.one));
        assert_int_equal(s.a.answer->n_tensors, 1);
        assert_true(*(const float *)ch_tensor_data(s.a.answer->tensor[0]) == (float)(i + 1));
    }
    assert_true(first_of(&s.a, 1, 0) == 5);
    tear_down(&s);
}

/* The second attempt of a step changes nothing, and its reply is that of the first attempt. */
static void server_applies_a_repeated_update_once(void **state)
{
    setting s;

    (void)state;
    set_up(&s);
    for (int i = 0; i < 3; i++) {
        t_ok(update(&s.a, (attempt){.step = 7, .registration = (uint64_t)i}, 1, &s.one));
        assert_true(*(const float *)ch_tensor_data(s.a.answer->tensor[0]) == 1);
    }
    t_ok(update(&s.a, (attempt){.step = 7, .sequence = 1}, 1,
                &s.one)); /* another update of the same step */
    t_ok(update(&s.a, (attempt){.step = 8, .retired = 8}, 1, &s.one));
    assert_true(first_of(&s.a, 1, 0) == 3);
    t_refused(update(&s.a, (attempt){.step = 7}, 1, &s.one), CH_ABORTED, "step 7", "below 8");
    assert_true(first_of(&s.a, 1, 0) == 3);
    tear_down(&s);
}

/* Updates of a registration that was declared lost are rejected, whenever they arrive. */
static void server_rejects_updates_of_a_registration_below_the_fence(void **state)
{
    Cohort__PsFence m;
    char            worker[] = "worker/0";
    setting         s;

    cohort__ps_fence__init(&m);
    (void)state;
    set_up(&s);
    m.worker = worker;
    m.registration = 5;
    t_ok(ask(&s.a, CH_PS_FENCE, &m.base, 0, NULL));
    m.registration = 3; /* an older fence that arrives late: the newer fence stays */
    t_ok(ask(&s.a, CH_PS_FENCE, &m.base, 0, NULL));
    t_refused(update(&s.a, (attempt){.step = 1, .registration = 4}, 1, &s.one), CH_ABORTED,
              "worker/0", "registration 4");
    t_ok(update(&s.a, (attempt){.step = 1, .registration = 5}, 1, &s.one));
    assert_true(first_of(&s.a, 1, 0) == 1);
    tear_down(&s);
}

/* UP-3: a value that was read does not change; a snapshot keeps all values. */
static void server_leaves_read_values_and_snapshots_unchanged_by_updates(void **state)
{
    setting     s;
    ch_message *kept;

    (void)state;
    set_up(&s);
    t_ok(update(&s.a, (attempt){.step = 1}, 1, &s.one));
    assert_true(first_of(&s.a, 1, 0) == 1);
    kept = ch__message_ref(s.a.answer);
    t_ok(snapshot(&s.a, 9, false));
    t_ok(update(&s.a, (attempt){.step = 2}, 1, &s.one));
    assert_true(*(const float *)ch_tensor_data(kept->tensor[0]) == 1);
    assert_true(first_of(&s.a, 1, 9) == 1);
    assert_true(first_of(&s.a, 1, 0) == 2);
    t_ok(snapshot(&s.a, 9, true));
    t_refused(read_pinned(&s.a, 1, 9), CH_NOT_FOUND, "snapshot 9", "here");
    ch__message_unref(kept);
    tear_down(&s);
}

/* A release ends all older snapshots too. A late repetition of the call does not create the
 * snapshot again. */
static void server_does_not_recreate_a_released_snapshot(void **state)
{
    setting s;
    int64_t live;

    (void)state;
    set_up(&s);
    for (uint64_t i = 1; i <= 4; i++) {
        t_ok(update(&s.a, (attempt){.step = i}, 1, &s.one));
        t_ok(snapshot(&s.a, 10 * i, false));
    }
    t_ok(snapshot(&s.a, 20, false)); /* a repeated call: the snapshot does not change */
    assert_true(first_of(&s.a, 1, 20) == 2);
    t_ok(snapshot(&s.a, 30, true));
    for (uint64_t i = 1; i <= 3; i++)
        t_refused(read_pinned(&s.a, 1, 10 * i), CH_NOT_FOUND, "snapshot", "here");
    assert_true(first_of(&s.a, 1, 40) == 4);

    t_ok(ping(&s.a, 0));
    live = ch__mem_live();
    t_ok(snapshot(&s.a, 30, false));
    t_ok(snapshot(&s.a, 25, false));
    t_ok(snapshot(&s.a, 10, true));
    assert_int_equal(ch__mem_live(), live);
    t_refused(read_pinned(&s.a, 1, 30), CH_NOT_FOUND, "snapshot 30", "here");
    assert_true(first_of(&s.a, 1, 40) == 4);

    t_ok(snapshot(&s.a, 60, true)); /* before the variable was set for the first time */
    t_ok(snapshot(&s.a, 60, false));
    t_refused(read_pinned(&s.a, 1, 60), CH_NOT_FOUND, "snapshot 60", "here");
    t_refused(read_pinned(&s.a, 1, 40), CH_NOT_FOUND, "snapshot 40", "here");
    t_refused(snapshot(&s.a, 0, false), CH_INVALID_ARGUMENT, "snapshot", "number");
    tear_down(&s);
}

/* An assign is applied once for a step, even if other steps change the variable in between. */
static void server_applies_a_repeated_assign_once(void **state)
{
    uint64_t number = 1;
    setting  s;

    (void)state;
    set_up(&s);
    t_ok(update(&s.a, (attempt){.step = 1}, 1, &s.one));
    t_ok(update(&s.a, (attempt){.step = 2}, 1, &s.one));
    t_ok(assign(&s.a, (attempt){.step = 3}, 1, &number, &s.one));
    assert_true(first_of(&s.a, 1, 0) == 1);
    t_ok(update(&s.a, (attempt){.step = 3}, 1, &s.one));          /* counted separately */
    t_ok(assign(&s.a, (attempt){.step = 3}, 1, &number, &s.one)); /* repeated */
    assert_true(first_of(&s.a, 1, 0) == 2);
    t_ok(assign(&s.a, (attempt){.step = 4, .retired = 4}, 1, &number, &s.zero));
    t_refused(assign(&s.a, (attempt){.step = 3}, 1, &number, &s.one), CH_ABORTED, "step 3",
              "below 4");
    assert_true(first_of(&s.a, 1, 0) == 0);
    t_ok(update(&s.a, (attempt){.step = 5}, 1, &s.one));
    assert_true(first_of(&s.a, 1, 0) == 1);
    tear_down(&s);
}

/* The variable shares no memory with values that were read or sent. */
static void server_assign_shares_no_memory_with_its_value_or_with_readers(void **state)
{
    uint64_t    number = 1;
    setting     s;
    ch_message *kept;

    (void)state;
    set_up(&s);
    t_ok(snapshot(&s.a, 1, false));
    t_ok(read_pinned(&s.a, 1, 0));
    kept = ch__message_ref(s.a.answer);
    t_ok(assign(&s.a, (attempt){.step = 1}, 1, &number, &s.one));
    t_ok(update(&s.a, (attempt){.step = 2}, 1, &s.one));
    assert_true(*(const float *)ch_tensor_data(s.one) == 1);
    assert_true(*(const float *)ch_tensor_data(kept->tensor[0]) == 0);
    assert_true(first_of(&s.a, 1, 1) == 0);
    assert_true(first_of(&s.a, 1, 0) == 2);
    ch__message_unref(kept);
    tear_down(&s);
}

/* The second of two values has the wrong shape, so the first is not set either. */
static void server_assign_changes_all_variables_or_none(void **state)
{
    uint64_t   number[2] = {1, 2}, stranger[2] = {1, 9};
    ch_tensor *short_one = NULL, *whole = NULL;
    setting    s;

    (void)state;
    set_up(&s);
    t_ok(create(&s.a, 2, "w", s.zero));
    t_ok(ch_tensor_rows(s.one, 0, 2, &short_one));
    t_ok(ch_tensor_new(CH_I32, ch_shape_of(3), &whole));
    t_refused(assign(&s.a, (attempt){.step = 1}, 2, number, (ch_tensor *[]){s.one, short_one}),
              CH_INVALID_ARGUMENT, "w is f32(3,)", "f32(2,)");
    t_refused(assign(&s.a, (attempt){.step = 1}, 2, number, (ch_tensor *[]){s.one, whole}),
              CH_INVALID_ARGUMENT, "w is", "i32(3,)");
    t_refused(assign(&s.a, (attempt){.step = 1}, 2, stranger, (ch_tensor *[]){s.one, s.one}),
              CH_NOT_FOUND, "variable 9", "here");
    for (uint64_t i = 1; i <= 2; i++)
        assert_true(first_of(&s.a, i, 0) == 0);
    t_ok(assign(&s.a, (attempt){.step = 1}, 2, number, (ch_tensor *[]){s.one, s.one}));
    for (uint64_t i = 1; i <= 2; i++)
        assert_true(first_of(&s.a, i, 0) == 1);
    t_refused(update(&s.a, (attempt){.step = 2, .sequence = 0xffffffff}, 1, &s.one),
              CH_INVALID_ARGUMENT, "number", "4294967295");
    ch_tensor_unref(short_one);
    ch_tensor_unref(whole);
    tear_down(&s);
}

/* Whichever allocation fails, either both variables have the new value, or neither has. */
static void server_assign_changes_nothing_when_memory_is_short(void **state)
{
    uint64_t  number[2] = {1, 2};
    ch_status rc = CH_UNAVAILABLE;
    setting   s;

    (void)state;
    set_up(&s);
    t_ok(create(&s.a, 2, "w", s.zero));
    for (int64_t n = 1; rc != CH_OK; n++) {
        float first;

        s.a.fail_at = n;
        rc = assign(&s.a, (attempt){.step = 1}, 2, number, (ch_tensor *[]){s.one, s.one});
        s.a.fail_at = 0;
        first = first_of(&s.a, 1, 0);
        assert_true(first == first_of(&s.a, 2, 0));
        assert_true(rc != CH_OK || first == 1);
        assert_true(n < 200);
    }
    tear_down(&s);
}

/* When a ping has retired steps, the server rejects their calls. A later ping cannot undo
 * this. */
static void server_rejects_steps_that_a_ping_retired(void **state)
{
    uint64_t number = 1;
    setting  s;

    (void)state;
    set_up(&s);
    t_ok(ping(&s.a, 0));
    t_ok(update(&s.a, (attempt){.step = 5}, 1, &s.one));
    t_ok(ping(&s.a, 6));
    t_ok(ping(&s.a, 6));
    t_ok(ping(&s.a, 3)); /* late */
    t_refused(update(&s.a, (attempt){.step = 5}, 1, &s.one), CH_ABORTED, "step 5", "below 6");
    t_refused(assign(&s.a, (attempt){.step = 4}, 1, &number, &s.one), CH_ABORTED, "step 4",
              "below 6");
    t_ok(update(&s.a, (attempt){.step = 6}, 1, &s.one));
    assert_true(first_of(&s.a, 1, 0) == 2);
    tear_down(&s);
}

/* ---- memory ---- */

enum {
    MANY = 1 << 18,
    LITTLE = 1 << 15
}; /* elements of a variable; bytes that a call may allocate */

/* Messages are delivered without encoding. */
static void set_up_large(setting *s)
{
    begin(&s->a, false);
    s->zero = t_noise(ch_shape_of(MANY), 1);
    s->one = t_noise(ch_shape_of(MANY), 2);
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "v", .initial = s->zero}, &s->v));
    t_ok(create(&s->a, 1, "v", s->zero));
    t_ok(define(&s->a, add_silently, s->v, s->one));
    for (uint64_t i = 1; i <= 3; i++)
        t_ok(update(&s->a, (attempt){.step = i}, 1, &s->one));
}

static const void *place_of_value(asker *a)
{
    t_ok(read_pinned(a, 1, 0));
    return ch_tensor_data(a->answer->tensor[0]);
}

/* Neither the variable nor the gradient, which belongs to another task, is copied. */
static void server_updates_a_value_in_place_when_no_reader_holds_it(void **state)
{
    setting     s;
    const void *at;

    (void)state;
    set_up_large(&s);
    at = place_of_value(&s.a);
    ch__mem_watch(true);
    for (uint64_t i = 4; i < 20; i++)
        t_ok(update(&s.a, (attempt){.step = i, .retired = i}, 1, &s.one));
    assert_true(ch__mem_peak() < LITTLE);
    ch__mem_watch(false);
    assert_ptr_equal(place_of_value(&s.a), at);
    tear_down(&s);
}

/* A worker reads, keeps the value while it sends an update, and reads again: the server uses
 * two buffers in turns. */
static void server_alternates_between_two_buffers_when_a_reader_holds_the_value(void **state)
{
    setting     s;
    const void *at[2];
    ch_message *kept = NULL;

    (void)state;
    set_up_large(&s);
    for (uint64_t i = 4; i < 40; i++) {
        const void *is = place_of_value(&s.a);

        ch__message_unref(kept);
        kept = ch__message_ref(s.a.answer);
        t_ok(update(&s.a, (attempt){.step = i, .retired = i}, 1, &s.one));
        if (i < 6)
            at[i % 2] = is;
        else
            assert_ptr_equal(is, at[i % 2]);
        if (i == 6)
            ch__mem_watch(true);
        if (i >= 6)
            assert_true(ch__mem_peak() < LITTLE);
    }
    ch__mem_watch(false);
    ch__message_unref(kept);
    tear_down(&s);
}

/* The second buffer is freed when it was not needed for some time. */
static void server_frees_the_second_buffer_when_no_reader_needs_it(void **state)
{
    setting     s;
    ch_message *kept;
    int64_t     live = 0;

    (void)state;
    set_up_large(&s);
    for (uint64_t i = 4; i < 150; i++) { /* the server creates and frees records of updates */
        if (i == 100)
            live = ch__mem_live();
        t_ok(update(&s.a, (attempt){.step = i, .retired = i}, 1, &s.one));
    }
    (void)place_of_value(&s.a);
    kept = ch__message_ref(s.a.answer);
    t_ok(update(&s.a, (attempt){.step = 150, .retired = 150}, 1, &s.one));
    ch__message_unref(kept);
    assert_true(ch_device_bytes(options.device) >= 2 * MANY * sizeof(float));
    for (uint64_t i = 151; i < 250; i++)
        t_ok(update(&s.a, (attempt){.step = i, .retired = i}, 1, &s.one));
    assert_true(ch_device_bytes(options.device) < 2 * MANY * sizeof(float));
    assert_true(ch__mem_live() <= live + 8);
    tear_down(&s);
}

/* The table of remembered results shrinks, however large it was. */
static void server_frees_remembered_results_when_steps_retire(void **state)
{
    uint64_t number = 1;
    setting  s;

    (void)state;
    begin(&s.a, false);
    s.zero = t_noise(ch_shape_of(MANY), 1);
    s.one = t_noise(ch_shape_of(MANY), 2);
    t_ok(ch_var_new(NULL, &(ch_var_spec){.name = "v", .initial = s.zero}, &s.v));
    t_ok(create(&s.a, 1, "v", s.zero));
    t_ok(define(&s.a, add_step, s.v, s.one));
    for (uint64_t i = 1; i <= 40; i++)
        t_ok(assign(&s.a, (attempt){.step = i}, 1, &number, &s.zero));
    for (uint64_t i = 41; i <= 70; i++)
        t_ok(update(&s.a, (attempt){.step = i, .retired = i}, 1, &s.one));
    assert_true(ch_device_bytes(options.device) < 10 * MANY * sizeof(float));
    tear_down(&s);
}

static void server_reuses_the_memory_of_released_rows(void **state)
{
    Cohort__PsRows m;
    uint64_t       number = 2;
    ch_tensor     *table = t_noise(ch_shape_of(64, 4096), 1), *ids = NULL;
    asker          a;

    cohort__ps_rows__init(&m);
    (void)state;
    begin(&a, false);
    t_ok(create(&a, 2, "table", table));
    t_ok(ch_tensor_new(CH_I64, ch_shape_of(40), &ids));
    m.n_variables = 1;
    m.variables = &number;
    for (int i = 0; i < 20; i++) {
        t_ok(ask(&a, CH_PS_ROWS, &m.base, 1, &ids));
        if (i == 2)
            ch__mem_watch(true);
        if (i >= 2)
            assert_true(ch__mem_peak() < LITTLE);
    }
    ch__mem_watch(false);
    ch_tensor_unref(ids);
    ch_tensor_unref(table);
    end(&a);
}

static void server_returns_rows_by_their_ids(void **state)
{
    static const float   data[6] = {0, 1, 10, 11, 20, 21};
    static const int64_t id[3] = {2, 0, 2}, bad[1] = {3};
    Cohort__PsRows       m;
    uint64_t             number = 2;
    ch_tensor           *table = t_f32(ch_shape_of(3, 2), data), *ids = NULL, *wrong = NULL;
    asker                a;

    cohort__ps_rows__init(&m);
    (void)state;
    begin(&a, true);
    t_ok(create(&a, 2, "table", table));
    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(3), id, &ids));
    t_ok(ch_tensor_copy_of(CH_I64, ch_shape_of(1), bad, &wrong));
    m.n_variables = 1;
    m.variables = &number;
    t_ok(ask(&a, CH_PS_ROWS, &m.base, 1, &ids));
    assert_memory_equal(ch_tensor_data(a.answer->tensor[0]), ((float[]){20, 21, 0, 1, 20, 21}),
                        24);
    t_refused(ask(&a, CH_PS_ROWS, &m.base, 1, &wrong), CH_INVALID_ARGUMENT, "id 3", "[0, 3)");
    t_refused(ask(&a, CH_PS_ROWS, &m.base, 0, NULL), CH_INVALID_ARGUMENT, "0 variables", "1");
    number = 7;
    t_refused(ask(&a, CH_PS_ROWS, &m.base, 1, &ids), CH_NOT_FOUND, "variable 7", "no");
    ch_tensor_unref(ids);
    ch_tensor_unref(wrong);
    ch_tensor_unref(table);
    end(&a);
}

/* The step with the largest possible number is remembered as any other, and its record is
 * freed. */
static void server_leaks_nothing_after_the_largest_step_number(void **state)
{
    int64_t live = ch__mem_live();
    setting s;

    (void)state;
    for (int i = 0; i < 3; i++) { /* workspaces of devices are allocated once */
        live = ch__mem_live();
        set_up(&s);
        t_ok(update(&s.a, (attempt){.step = UINT64_MAX, .retired = UINT64_MAX}, 1, &s.one));
        tear_down(&s);
    }
    assert_int_equal(ch__mem_live(), live);
}

static void server_rejects_invalid_requests_and_changes_nothing(void **state)
{
    Cohort__PsFree m;
    uint64_t       number = 1;
    setting        s;

    cohort__ps_free__init(&m);
    (void)state;
    set_up(&s);
    t_refused(update(&s.a, (attempt){.step = 1, .function = 2}, 1, &s.one), CH_NOT_FOUND,
              "function 2", "here");
    t_refused(update(&s.a, (attempt){.step = 1}, 0, NULL), CH_INVALID_ARGUMENT, "takes 1",
              "not 0");
    t_refused(create(&s.a, 1, "another", s.one), CH_ALREADY_EXISTS, "another", "by variable v");
    t_ok(create(&s.a, 1, "v", s.one)); /* repeated */
    t_refused(ask(&s.a, 99, &m.base, 0, NULL), CH_UNIMPLEMENTED, "method 99", "no");
    assert_true(first_of(&s.a, 1, 0) == 0);
    m.n_variables = 1;
    m.variables = &number;
    t_ok(ask(&s.a, CH_PS_FREE, &m.base, 0, NULL));
    t_refused(read_pinned(&s.a, 1, 0), CH_NOT_FOUND, "variable 1", "here");
    t_refused(update(&s.a, (attempt){.step = 1}, 1, &s.one), CH_NOT_FOUND, "function 1",
              "here");
    tear_down(&s);
}

static void server_frees_functions_on_request(void **state)
{
    Cohort__PsFree m;
    setting        s;

    cohort__ps_free__init(&m);
    (void)state;
    set_up(&s);
    m.first_update = 2;
    m.n_updates = UINT64_MAX - 2;
    t_ok(ask(&s.a, CH_PS_FREE, &m.base, 0, NULL));
    t_ok(update(&s.a, (attempt){.step = 1}, 1, &s.one));
    m.first_update = 1;
    m.n_updates = 1;
    t_ok(ask(&s.a, CH_PS_FREE, &m.base, 0, NULL));
    t_ok(ask(&s.a, CH_PS_FREE, &m.base, 0, NULL)); /* repeated */
    t_refused(update(&s.a, (attempt){.step = 2}, 1, &s.one), CH_NOT_FOUND, "function 1",
              "here");
    assert_true(first_of(&s.a, 1, 0) == 1);
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(server_frees_functions_on_request),
        cmocka_unit_test(server_applies_an_update_and_returns_its_result),
        cmocka_unit_test(server_applies_a_repeated_update_once),
        cmocka_unit_test(server_rejects_updates_of_a_registration_below_the_fence),
        cmocka_unit_test(server_leaves_read_values_and_snapshots_unchanged_by_updates),
        cmocka_unit_test(server_does_not_recreate_a_released_snapshot),
        cmocka_unit_test(server_applies_a_repeated_assign_once),
        cmocka_unit_test(server_assign_shares_no_memory_with_its_value_or_with_readers),
        cmocka_unit_test(server_assign_changes_all_variables_or_none),
        cmocka_unit_test(server_assign_changes_nothing_when_memory_is_short),
        cmocka_unit_test(server_rejects_steps_that_a_ping_retired),
        cmocka_unit_test(server_updates_a_value_in_place_when_no_reader_holds_it),
        cmocka_unit_test(server_alternates_between_two_buffers_when_a_reader_holds_the_value),
        cmocka_unit_test(server_frees_the_second_buffer_when_no_reader_needs_it),
        cmocka_unit_test(server_frees_remembered_results_when_steps_retire),
        cmocka_unit_test(server_reuses_the_memory_of_released_rows),
        cmocka_unit_test(server_returns_rows_by_their_ids),
        cmocka_unit_test(server_leaks_nothing_after_the_largest_step_number),
        cmocka_unit_test(server_rejects_invalid_requests_and_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
