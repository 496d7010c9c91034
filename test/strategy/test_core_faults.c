/* test/strategy/test_core_faults.c -- faults of logical devices (cores) in a step that trains.
 *
 * A core fails, has no memory, or stalls past the deadline, in a random call. The run must then
 * fail with an error that names the core, and must change no variable. The next run must be
 * right: a second strategy, which has no faults, runs the same steps, and all variables must
 * have the same bits.
 *
 * The test replaces the kernels of the planned programs by a kernel that counts the calls of
 * each member, runs the original kernel, and causes the fault in the chosen call. T_CASES is the
 * number of faults; the test then prints how many there were of each kind.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/config.h"
#include "base/mem.h"
#include "collective/member.h"
#include "divided.h"
#include "graph/function.h"
#include "graph/program.h"
#include "strategy/strategy.h"
#include "tpu.h"

enum { MOST_CALLS = 4000, USUAL_CASES = 120, MEMORY = 1000000 };

typedef enum fault_kind { FAIL, NO_MEMORY, STALL, FAULTS } fault_kind;

/* ---- kernels with faults ---- */

typedef struct replaced {
    const ch_node   *node;
    const ch_kernel *kernel;
    bool             may_fail; /* before the program writes variables */
} replaced;

static int      n_replaced;
static replaced table[MOST_CALLS];

/* The calls of each member in this run, before it writes variables. */
static int n_calls[T_MOST_DEVICES];

/* The fault of this run: the member, and the calls that it makes before; member -1: none. */
static struct {
    int         member, call, n_cores;
    fault_kind  kind;
    const char *op; /* of the call, once the fault was caused */
} fault = {.member = -1};

static int n_faults[FAULTS]; /* caused so far */

/* Blocks until another member has given up. */
static ch_status stall(const ch_call *c)
{
    const ch_group *g = c->env->cores;

    for (time_t end = time(NULL) + 20; time(NULL) < end && !atomic_load(&g->sync->is_aborted);)
        sched_yield();
    return ch__fail(CH_INTERNAL, "the run was not aborted");
}

static ch_status run_with_fault(const ch_call *c, ch_kernel_tile t)
{
    int             m = c->env->local * fault.n_cores + c->env->core;
    const replaced *r = table;
    bool            is_first = t.phase == 0 && t.index == 0;
    ch_status       rc;

    while (r->node != c->node)
        r++;
    if (!r->may_fail || !is_first)
        return r->kernel->run(c, t);
    if (m == fault.member && n_calls[m] == fault.call) {
        fault.op = c->node->op->name;
        if (fault.kind == STALL)
            return stall(c);
        return ch__call_fail(c, fault.kind == FAIL ? CH_INTERNAL : CH_RESOURCE_EXHAUSTED,
                             "this call has a fault");
    }
    rc = r->kernel->run(c, t);
    if (rc != CH__BLOCKED)
        n_calls[m]++;
    return rc;
}

static const ch_kernel with_fault = {"with a fault", .run = run_with_fault};

/* Replaces the kernels of the programs that are new. */
static void replace_kernels(ch_function *f)
{
    for (ch_prepared *p = f->programs; p != NULL; p = p->next)
        for (int i = 0; i < p->n_programs; i++)
            for (int k = 0; k < p->program[i]->n_instrs; k++) {
                ch_instr *in = &p->program[i]->instr[k];

                if (in->kernel == NULL || in->kernel == &with_fault)
                    continue;
                assert_in_range(n_replaced, 0, MOST_CALLS - 1);
                table[n_replaced++] =
                    (replaced){in->node, in->kernel, k < p->program[i]->n_commit};
                in->kernel = &with_fault;
            }
}

/* ---- trainings ---- */

/* A classifier with tiles, partial sums, cross-replica sums and a limit of the norm. */
static ch_node *loss_of(ch_node *x, ch_node *y, ch_node *const *w)
{
    x = ch_mesh_split(x, 2, (int[]){CH_OFF, CH_OFF});
    x = ch_tanh(ch_add(ch_matmul(x, false, w[0], false), w[1]));
    x = ch_softmax(ch_matmul(x, false, w[2], false), -1);
    return ch_loss_mse(x, y);
}

static const example network = {
    .n_in = 6,
    .n_out = 5,
    .n_vars = 3,
    .var = (const param[]){{"k1", {.rank = 2, .dim = {6, 9}}, {CH_OFF, 0}},
                           {"b1", {.rank = 1, .dim = {9}}, {0}},
                           {"k2", {.rank = 2, .dim = {9, 5}}, {0, CH_OFF}}},
    .loss = loss_of,
    .options = {.clip_global_norm = 0.5}};

/* The strategy of a training: one of cores of GPUs, or a TPUStrategy without or with spmd, whose
 * members are not in the order of their devices. */
typedef enum kind { CORES, TPU, TPU_SPMD, KINDS } kind;

static ch_strategy *new_strategy(kind k, int n_replicas, int n_cores)
{
    static const int at[] = {5, 2, 7, 0, 3, 6, 1, 4};

    return k == CORES ? t_cores_strategy(n_replicas, n_cores, NULL)
                      : t_tpu_on(n_replicas, n_cores, at, k == TPU_SPMD);
}

typedef struct training {
    ch_strategy *st;
    ch_function *f;
    model        m;
} training;

static training new_training(kind k, int n_replicas, int n_cores)
{
    training x = {.st = new_strategy(k, n_replicas, n_cores),
                  .m = {.e = &network, .dtype = CH_F64}};

    new_optimizer(&x.m, false);
    new_vars(x.st, &x.m, true);
    return x;
}

static void drop_training(training *x)
{
    for (int i = 0; i < x->m.n; i++)
        ch_var_unref(x->m.v[i]);
    ch_function_unref(x->f);
    ch_optimizer_unref(x->m.o);
    ch_strategy_unref(x->st);
}

static void check_same_bits(ch_var *a, ch_var *b)
{
    ch_tensor *t[2] = {NULL, NULL};

    t_ok(ch_var_get(a, &t[0]));
    t_ok(ch_var_get(b, &t[1]));
    if (memcmp(ch_tensor_data(t[0]), ch_tensor_data(t[1]), ch_tensor_bytes(t[1])) != 0)
        fail_msg("%s has changed", ch_var_name(a));
    ch_tensor_unref(t[0]);
    ch_tensor_unref(t[1]);
}

/* Checks that the variables and slots of two trainings have the same bits. */
static void check_same_state(const training *a, const training *b)
{
    ch_var *const *slot[2];
    int            n = ch_optimizer_vars(a->m.o, &slot[0]);

    for (int i = 0; i < a->m.n; i++)
        check_same_bits(a->m.v[i], b->m.v[i]);
    assert_int_equal(ch_optimizer_vars(b->m.o, &slot[1]), n);
    for (int i = 0; i < n; i++)
        check_same_bits(slot[0][i], slot[1][i]);
}

static ch_status run(training *x, int step, double *loss)
{
    ch_status rc;

    memset(n_calls, 0, sizeof(n_calls));
    rc = try_step(x->st, x->f, &x->m, step, loss);
    replace_kernels(x->f);
    return rc;
}

static void run_both(training *x, training *twin, int step)
{
    double loss[2] = {0, 1};

    fault.member = -1;
    t_ok(run(x, step, &loss[0]));
    t_ok(try_step(twin->st, twin->f, &twin->m, step, &loss[1]));
    assert_true(loss[0] == loss[1]);
    check_same_state(x, twin);
}

/* ---- the faults ---- */

static unsigned draw(unsigned *seed, int below)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % (unsigned)below;
}

/* Checks the error of run `number` with the fault: it names the step, the run, the replica, the core with its
 * device, the op of the call, and a line. If the core has stalled, another core says for which
 * core it waits, in which op and line. */
static void check_error(ch_strategy *st, ch_status rc, int64_t number, int member,
                        int n_replicas, int n_cores)
{
    ch_device *const      *device;
    static const ch_status code[] = {CH_INTERNAL, CH_RESOURCE_EXHAUSTED, CH_DEADLINE_EXCEEDED};
    char                   replica[32], core[32], where[64], step[64];

    snprintf(replica, sizeof(replica), "replica %d", member / n_cores);
    t_ok(ch__strategy_devices(st, &device));
    snprintf(core, sizeof(core), "core %d (%s)", member % n_cores,
             ch__device_short_name(device[member]));
    snprintf(where, sizeof(where), fault.kind == STALL ? ", in %s" : "%s(", fault.op);
    t_refused(rc, code[fault.kind], core, n_replicas > 1 ? replica : "");
    t_refused(rc, code[fault.kind], where, ", at ");
    snprintf(step, sizeof(step), "step, run %lld: ", (long long)number);
    assert_ptr_equal(strstr(ch_error_message(), step), ch_error_message());
    if (strstr(ch_error_message(), "divided.h:") == NULL &&
        strstr(ch_error_message(), "test_core_faults.c:") == NULL)
        fail_msg("\"%s\" has no line", ch_error_message());
}

/* Causes n faults of random kinds, in random calls of random members. */
static void cause_faults(kind of, int n_replicas, int n_cores, int n, unsigned seed)
{
    training x = new_training(of, n_replicas, n_cores);
    training twin = new_training(of, n_replicas, n_cores);
    int      count[T_MOST_DEVICES], n_members = n_replicas * n_cores;

    x.f = t_function(train, &x.m);
    twin.f = t_function(train, &twin.m);
    fault.n_cores = n_cores;
    for (int i = 0; i < 5; i++) /* plans the programs of both sizes of batches */
        run_both(&x, &twin, i);
    for (int i = 0; i < n; i++) {
        bool   in_turns = draw(&seed, 2) == 0; /* a stall needs threads */
        double unused;

        t_ok(ch__config_set("replicas", in_turns ? "turns" : "threads"));
        run_both(&x, &twin, i);
        memcpy(count, n_calls, sizeof(count));
        fault.member = (int)draw(&seed, n_members);
        fault.call = (int)draw(&seed, count[fault.member]);
        fault.kind = (fault_kind)draw(&seed, in_turns ? STALL : FAULTS);
        n_faults[fault.kind]++;
        if (fault.kind == STALL)
            t_ok(ch__config_set("wait_limit_ms", "150"));
        check_error(x.st, run(&x, i, &unused), 2 * i + 6, fault.member, n_replicas, n_cores);
        t_ok(ch__config_set("wait_limit_ms", "60000"));
        check_same_state(&x, &twin);
    }
    run_both(&x, &twin, n);
    n_replaced = 0;
    drop_training(&x);
    drop_training(&twin);
}

static void fault_in_a_random_call_names_the_core_and_changes_no_variable(void **state)
{
    static const int number[][2] = {{1, 2}, {1, 3}, {1, 4}, {2, 2}, {2, 3}, {2, 4}};
    const char      *cases = getenv("T_CASES");
    int              n = cases != NULL ? atoi(cases) : USUAL_CASES;

    (void)state;
    memset(n_faults, 0, sizeof(n_faults));
    for (int i = 0; i < 6 * KINDS; i++)
        cause_faults((kind)(i % KINDS), number[i / KINDS][0], number[i / KINDS][1],
                     n * (i + 1) / (6 * KINDS) - n * i / (6 * KINDS), (unsigned)i);
    if (cases != NULL)
        printf("%d calls failed, %d had no memory, %d stalled\n", n_faults[FAIL],
               n_faults[NO_MEMORY], n_faults[STALL]);
}

/* A variable of another strategy takes almost all memory of one device. The step then needs
 * more than there is. */
static void full_device_is_named_and_no_variable_changes(void **state)
{
    training x = new_training(CORES, 1, 4), twin = new_training(CORES, 1, 4);
    double   unused;

    (void)state;
    x.f = t_function(train, &x.m);
    twin.f = t_function(train, &twin.m);
    t_ok(ch_optimizer_build(x.m.o, x.m.n, x.m.v));
    t_ok(ch_optimizer_build(twin.m.o, twin.m.n, twin.m.v));
    for (int c = 0; c < 4; c++) {
        ch_strategy *other = NULL;
        ch_var      *large = NULL;
        int64_t      size = MEMORY / sizeof(float);
        char         name[16];

        snprintf(name, sizeof(name), "GPU:%d", c);
        t_ok(ch_strategy_one_device(name, &other));
        while (ch_var_new(other, &(ch_var_spec){.name = "large", .shape = ch_shape_of(size)},
                          &large) != CH_OK)
            size -= 50;
        t_refused(try_step(x.st, x.f, &x.m, 0, &unused), CH_RESOURCE_EXHAUSTED, name,
                  "memory_bytes");
        check_same_state(&x, &twin);
        ch_var_unref(large);
        ch_strategy_unref(other);
    }
    for (int i = 0; i < 3; i++)
        run_both(&x, &twin, i);
    n_replaced = 0;
    drop_training(&x);
    drop_training(&twin);
}

static int small_gpus(void **state)
{
    (void)state;
    t_ok(ch_devices_configure(
        &(ch_devices_options){.spec = "GPU=8,TPU=8", .threads = 1, .memory_bytes = MEMORY}));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_device_is_named_and_no_variable_changes),
        cmocka_unit_test(fault_in_a_random_call_names_the_core_and_changes_no_variable),
    };

    return cmocka_run_group_tests(tests, small_gpus, NULL);
}
