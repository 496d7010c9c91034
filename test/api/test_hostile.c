/* test/api/test_hostile.c -- no public function crashes, hangs or breaks an invariant of the
 * library, with any arguments.
 *
 *      test_hostile [--servers] FUNCTION...     calls only these, and prints the result of each call
 *
 * tools/make-hostile-calls writes the calls from the headers. It calls each function with usual
 * arguments, then with each hostile value of each argument in turn, then with the first hostile
 * value of all arguments at once. Each call runs in its own process, so that a crash is
 * attributed to its call and calls do not affect each other. Several processes run at a time. A
 * process may allocate at most LIMIT_BYTES of memory, so that large sizes fail on every machine
 * alike.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../file/folder.h"
#include "hostile.h"

enum { LIMIT_SECONDS = 30 };
#define LIMIT_BYTES (4ll << 30)

/* The sanitizers reserve more address space than LIMIT_BYTES, and have their own limit. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool limits_address_space = false;
#else
static const bool limits_address_space = true;
#endif

CH_API const char *__asan_default_options(void);
const char        *__asan_default_options(void)
{
    return "allocator_may_return_null=1:max_allocation_size_mb=4096";
}

static char long_text[20001];
const char *hostile_long_text = long_text;

typedef struct attempt {
    const hostile_function *f;
    int                     hostile; /* 0: usual arguments */
    hostile_context         context;
    bool                    is_printed, worked;
} attempt;

/* ---- contexts ---- */

static ch_node *constant(ch_step *s, ch_dtype dtype, ch_shape shape, const void *data)
{
    ch_tensor *t = NULL;

    return ch_tensor_copy_of(dtype, shape, data, &t) == CH_OK ? ch_constant(s, t) : NULL;
}

static void make_nodes(ch_step *s)
{
    static const float   floats[16] = {1, 2, 3, 4};
    static const int64_t splits[] = {0, 2};

    recording = (hostile_recording){
        .s = s,
        .x = ch_step_in(s, 0),
        .ids = ch_step_in(s, 1),
        .strings = ch_step_in(s, 2),
        .image = ch_step_in(s, 3),
        .empty = constant(s, CH_F32, ch_shape_of(0, 2), floats),
        .flags = constant(s, CH_BOOL, ch_shape_of(2, 2), "\1\1\1\1"),
        .flag = constant(s, CH_BOOL, ch_shape_scalar(), "\1"),
        .vector = constant(s, CH_F32, ch_shape_of(2), floats),
        .number = constant(s, CH_F32, ch_shape_scalar(), floats),
        .step = constant(s, CH_I64, ch_shape_scalar(), &splits[1]),
        .splits = constant(s, CH_I64, ch_shape_of(2), splits),
        .deep = constant(s, CH_F32, ch_shape_of(1, 1, 1, 1, 1, 1, 1, 1), floats),
    };
}

static void merge(ch_step *s, int n, ch_node *const *in, ch_node **out, void *arg)
{
    attempt *a = arg;

    (void)s, (void)n, (void)out;
    recording.x = in[0];
    recording.is_body = true;
    a->worked = a->f->call(a->hostile);
}

static attempt *building;

static ch_status build(ch_layer *l, void *self, int n_in, ch_node *const *in)
{
    (void)self, (void)n_in, (void)in;
    recording.layer = l;
    recording.is_body = true;
    building->worked = building->f->call(building->hostile);
    return CH_OK;
}

static void record(ch_step *s, void *arg)
{
    attempt     *a = arg;
    ch_layer_ops ops = usual_layer_ops;

    make_nodes(s);
    building = a;
    ops.build = build;
    if (a->context == HOSTILE_IN_MERGE)
        ch_merge_call(s, merge, a, 1, (ch_node *[]){ch_identity(recording.x)}, 0, NULL);
    else if (a->context == HOSTILE_IN_BUILD)
        ch_layer_call(ch_layer_new(&ops, NULL, 0, 0, NULL), s, recording.x, true);
    else
        a->worked = a->f->call(a->hostile);
    recording = (hostile_recording){.s = NULL};
}

/* The inputs of the step: see hostile_recording. */
static ch_status make_inputs(ch_tuple **out)
{
    static const char *const name[] = {"x",     "ids",        "strings",
                                       "image", "sparse/ids", "sparse/rows"};
    enum { N = sizeof(name) / sizeof(name[0]) };
    ch_tensor *t[N] = {usual_tensor(), usual_ids(), usual_strings(),
                       NULL,           usual_ids(), usual_tensor()};
    ch_value  *v[N] = {0};
    ch_status  rc = ch_tensor_new(CH_F32, ch_shape_of(2, 2, 2, 2), &t[3]);

    for (int i = 0; i < N && rc == CH_OK; i++)
        rc = ch_value_new(CH_PLAIN, 1, &t[i], &v[i]);
    return rc == CH_OK ? ch_tuple_new(N, v, name, out) : rc;
}

/* The step in which a call is made: axis 0 of its inputs is a symbol, or results have
 * gradients. */
typedef enum step_kind { WITH_SYMBOLS, WITH_GRADIENTS, WITH_NUMBERS } step_kind;

static void call_in_step(attempt *a, step_kind kind)
{
    ch_function *f = NULL;
    ch_tuple    *in = NULL;
    ch_status    rc = ch_function_new("hostile", record, a, &f);

    if (rc == CH_OK)
        rc = make_inputs(&in);
    if (kind != WITH_SYMBOLS)
        ch_function_static_rows(f);
    use_takes_gradients = kind == WITH_GRADIENTS;
    if (rc == CH_OK)
        rc = ch_strategy_run(usual_strategy(), f, in, NULL);
    a->worked &= use_status(rc);
}

static ch_training *training;

ch_training *usual_training(void)
{
    return training;
}

static ch_status in_training(ch_training *t, ch_event event, void *arg)
{
    attempt *a = arg;

    (void)event;
    training = t;
    a->worked = a->f->call(a->hostile);
    return CH_OK;
}

static void call_in_training(attempt *a)
{
    ch_callback *c = NULL;

    if (ch_callback_of(CH_ON_STEP, in_training, a, &c) == CH_OK)
        use_callback(c);
}

/* ---- processes ---- */

static void make_call(attempt *a)
{
    ch_error_info info;

    a->f->call(-1); /* makes the objects that cannot be made in a step */
    if (usual_strategy_is_servers && !usual_strategy_was_used)
        _exit(HOSTILE_NOT_TRIED);
    switch (a->context) {
    case HOSTILE_PLAIN:
    case HOSTILE_NOT_IN_STEP:
        a->worked = a->f->call(a->hostile);
        break;
    case HOSTILE_IN_TRAINING:
        call_in_training(a);
        break;
    default:
        if (a->context == a->f->context) {
            call_in_step(a, WITH_SYMBOLS);
            call_in_step(a, WITH_GRADIENTS);
        }
        call_in_step(a, WITH_NUMBERS);
    }
    ch_error_get_info(&info);
    use_status(info.code);
    if (a->is_printed)
        printf("    %s\n", a->worked ? "worked" : ch_error_message());
}

/* Makes a call in a new process. Returns its exit status in the form of wait(). */
static int call(attempt a)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    pid_t            child;
    int              status = 0;

    fflush(stdout);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!a.is_printed && (freopen("/dev/null", "w", stdout) == NULL ||
                              freopen("/dev/null", "w", stderr) == NULL))
            _exit(HOSTILE_NOT_MADE);
        for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
            signal(faults[i], SIG_DFL); /* cmocka's handlers would continue after the signal */
        if (limits_address_space &&
            setrlimit(RLIMIT_AS, &(struct rlimit){LIMIT_BYTES, LIMIT_BYTES}) != 0)
            _exit(HOSTILE_NOT_MADE);
        alarm(LIMIT_SECONDS); /* a call that hangs is a fault too */
        make_call(&a);
        fflush(stdout);
        _exit(a.worked ? HOSTILE_WORKED : HOSTILE_REFUSED);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* Returns true if the exit code is correct for this call. */
static bool is_right(const attempt *a, int code)
{
    if (a->hostile == 0 && a->context == a->f->context && !usual_strategy_is_servers)
        return code == (a->f->works ? HOSTILE_WORKED : HOSTILE_REFUSED);
    return code == HOSTILE_WORKED || code == HOSTILE_REFUSED || code == HOSTILE_NOT_TRIED;
}

/* Makes a call. If there was a fault, adds 1 to *faults and prints it. Returns the exit code,
 * or -1 if there is none. */
static int try_call(attempt a, int *faults)
{
    const char *what = a.hostile == 0 ? "usual arguments" : a.f->hostile[a.hostile - 1];
    const char *where = a.context == a.f->context ? "" : ", in a step";
    int         status, code;

    if (a.is_printed)
        printf("%s: %s%s\n", a.f->name, what, where);
    status = call(a);
    code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (is_right(&a, code))
        return code;
    if (code < 0)
        fprintf(stderr, "%s: signal %d: %s%s\n", a.f->name, WTERMSIG(status), what, where);
    else
        fprintf(stderr, "%s: exit code %d: %s%s\n", a.f->name, code, what, where);
    *faults += 1;
    return code;
}

/* Makes all calls of a function. Returns the number of faults. */
static int count_faults(const hostile_function *f, bool is_printed)
{
    attempt a = {f, 0, f->context, is_printed, false};
    int     faults = 0;

    if (try_call(a, &faults) == HOSTILE_NOT_TRIED)
        return 0;
    for (a.hostile = 1; f->hostile[a.hostile - 1] != NULL; a.hostile++)
        try_call(a, &faults);
    if (f->context == HOSTILE_PLAIN) {
        a.hostile = 0;
        a.context = HOSTILE_IN_STEP;
        try_call(a, &faults);
    }
    return faults;
}

/* Makes and enters a folder in which calls read and write files. A separate process writes the
 * files, because a process that has used devices cannot be forked. */
static bool enter_folder(const char *name)
{
    char  path[128];
    pid_t child;
    int   status = 1;

    snprintf(path, sizeof(path), "%s/%s", t_folder, name);
    if (mkdir(path, 0700) != 0 || chdir(path) != 0)
        return false;
    child = fork();
    if (child == 0)
        _exit(usual_write_files() == CH_OK ? 0 : 1);
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

enum { WORKERS = 4, MOST_FAULTS = 100 };

/* Makes the calls of every WORKERS-th function, from `first` on. Returns the number of
 * faults. */
static int work(int first)
{
    char name[32];
    int  faults = 0;

    snprintf(name, sizeof(name), "%d-%d", (int)usual_strategy_is_servers, first);
    if (!enter_folder(name))
        return 1;
    for (int i = 0; hostile_functions[i].name != NULL; i++)
        if (i % WORKERS == first)
            faults += count_faults(&hostile_functions[i], false);
    return faults < MOST_FAULTS ? faults : MOST_FAULTS;
}

/* Makes the calls of all functions, in several processes at a time. */
static int count_all_faults(void)
{
    pid_t worker[WORKERS];
    int   faults = 0, status = 0;

    for (int i = 0; i < WORKERS; i++) {
        worker[i] = fork();
        assert_true(worker[i] >= 0);
        if (worker[i] == 0)
            _exit(work(i));
    }
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(waitpid(worker[i], &status, 0), worker[i]);
        faults += WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    }
    return faults;
}

static void public_functions_neither_crash_nor_hang_when_arguments_are_hostile(void **state)
{
    (void)state;
    assert_int_equal(count_all_faults(), 0);
}

static void public_functions_neither_crash_nor_hang_when_variables_are_on_servers(void **state)
{
    (void)state;
    usual_strategy_is_servers = true;
    assert_int_equal(count_all_faults(), 0);
}

/* Makes the calls of the named functions, and prints the result of each. */
static int print_calls(int n, char **name)
{
    int faults = 0;

    if (t_folder_make(NULL) != 0 || !enter_folder("printed"))
        return 1;
    for (const hostile_function *f = hostile_functions; f->name != NULL; f++)
        for (int i = 0; i < n; i++)
            if (strcmp(name[i], f->name) == 0)
                faults += count_faults(f, true);
    return t_folder_remove(NULL) != 0 || faults != 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(public_functions_neither_crash_nor_hang_when_arguments_are_hostile),
        cmocka_unit_test(public_functions_neither_crash_nor_hang_when_variables_are_on_servers),
    };

    setenv("COHORT_DEVICES", "CPU=2,TPU=2", 1);
    memset(long_text, 'x', sizeof(long_text) - 1);
    usual_strategy_is_servers = argc > 1 && strcmp(argv[1], "--servers") == 0;
    argv += usual_strategy_is_servers;
    argc -= usual_strategy_is_servers;
    return argc > 1 ? print_calls(argc - 1, argv + 1)
                    : cmocka_run_group_tests(tests, t_folder_make, t_folder_remove);
}
