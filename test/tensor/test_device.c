/* test/tensor/test_device.c -- devices are configured once, found by name, and run jobs.
 *
 * The tests cover the text and the settings that configure devices, the names of devices, the
 * current device of a thread, launches on several devices, forked processes, and allocation
 * failures.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/config.h"
#include "base/mem.h"
#include "cohort/log.h"
#include "cohort/tensor.h"
#include "tensor/devices.h"

static int reset(void **state)
{
    ch__devices_reset();
    (void)state;
    return 0;
}

static ch_status configure(const char *spec)
{
    return ch_devices_configure(&(ch_devices_options){.spec = spec, .threads = 1});
}

static void devices_are_the_cores_by_default(void **state)
{
    int cores = ch__cpu_count(), n = cores < 8 ? cores : 8;

    assert_int_equal(ch_device_count(NULL), n);
    assert_int_equal(ch_device_count("CPU"), n);
    assert_int_equal(ch_device_count("GPU"), 0);
    assert_int_equal(ch_device_threads(ch_device_at(0)), cores / n);
    assert_string_equal(ch_device_name(ch_device_at(0)),
                        "/job:localhost/replica:0/task:0/device:CPU:0");
    assert_null(ch_device_at(n));
    assert_null(ch_device_at(-1));
    (void)state;
}

static void devices_stand_in_the_order_of_the_text_after_the_cpus(void **state)
{
    static const char *const want[] = {"GPU", "TPU", "TPU"};

    assert_int_equal(configure("gpu=1,TPU=2,CPU=2"), CH_OK);
    assert_int_equal(ch_device_count(NULL), 5);
    assert_int_equal(ch_device_count("cpu"), 2);
    for (int i = 0; i < 5; i++) {
        const ch_device_spec *where = ch_device_where(ch_device_at(i));

        assert_string_equal(where->type, i < 2 ? "CPU" : want[i - 2]);
        assert_int_equal(ch__device_ordinal(ch_device_at(i)), i);
    }
    assert_int_equal(ch_device_where(ch_device_at(4))->index, 1);
    (void)state;
}

/* 6.1.23: for g GPUs there are GPU:0 to g-1; for none there is CPU:0. */
static void devices_always_include_the_host(void **state)
{
    static const char *const specs[] = {"GPU=2", "CPU=0,GPU=2", "GPU=2,CPU=1"};

    for (int i = 0; i < 3; i++) {
        assert_int_equal(configure(specs[i]), CH_OK);
        assert_int_equal(ch_device_count("CPU"), 1);
        assert_int_equal(ch_device_count("GPU"), 2);
        ch__devices_reset();
    }
    assert_int_equal(configure("GPU=0"), CH_OK);
    assert_int_equal(ch_device_count(NULL), 1);
    (void)state;
}

static void devices_configure_rejects_malformed_text_and_shows_the_form(void **state)
{
    static const char *const specs[] = {"GPU",    "GPU=",        "=2",        "GPU=two",
                                        "GPU=-1", "GPU=1,",      "GPU=1;",    "GPU=1GPU",
                                        "1GPU=1", "CPU=2,cpu=3", "GPU=99999", "GPU=1,GPU=1"};

    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        assert_int_equal(configure(specs[i]), CH_INVALID_ARGUMENT);
        assert_non_null(strstr(ch_error_message(), specs[i]));
        assert_non_null(strstr(ch_error_message(), "TYPE=COUNT"));
    }
    (void)state;
}

static void devices_configure_rejects_invalid_options(void **state)
{
    assert_int_equal(ch_devices_configure(&(ch_devices_options){.threads = -1}),
                     CH_INVALID_ARGUMENT);
    assert_int_equal(ch_devices_configure(&(ch_devices_options){.task = -1}),
                     CH_INVALID_ARGUMENT);
    assert_int_equal(ch_devices_configure(&(ch_devices_options){.job = "a/b"}),
                     CH_INVALID_ARGUMENT);
    assert_int_equal(ch_devices_configure(&(ch_devices_options){.job = ""}),
                     CH_INVALID_ARGUMENT);
    (void)state;
}

static void devices_in_use_can_only_be_configured_as_they_are(void **state)
{
    assert_int_equal(configure("GPU=2"), CH_OK);
    assert_int_equal(configure("GPU=2"), CH_OK);
    assert_int_equal(configure("CPU=1,gpu=2"), CH_OK);
    assert_int_equal(configure("GPU=3"), CH_FAILED_PRECONDITION);
    assert_int_equal(
        ch_devices_configure(&(ch_devices_options){.spec = "GPU=2", .threads = 1, .task = 1}),
        CH_FAILED_PRECONDITION);
    assert_int_equal(ch_device_count("GPU"), 2);
    (void)state;
}

static void devices_follow_the_settings_devices_and_threads(void **state)
{
    assert_int_equal(ch__config_set("devices", "CPU=1,GPU=3"), CH_OK);
    assert_int_equal(ch__config_set("threads", "2"), CH_OK);
    assert_int_equal(ch_device_count("GPU"), 3);
    assert_int_equal(ch_device_threads(ch_device_at(3)), 2);
    assert_int_equal(ch_devices_configure(NULL), CH_OK);
    assert_int_equal(ch__config_set("devices", ""), CH_OK);
    assert_int_equal(ch__config_set("threads", "0"), CH_OK);
    (void)state;
}

static void count_record(const ch_log_record *r, void *arg)
{
    if (strcmp(r->code, "devices") == 0 && strstr(r->text, "COHORT_DEVICES") != NULL)
        ++*(int *)arg;
}

static void devices_setting_that_is_malformed_is_ignored_with_a_warning(void **state)
{
    int n = 0;

    assert_int_equal(ch__config_set("devices", "nonsense"), CH_OK);
    assert_int_equal(ch_devices_configure(NULL), CH_INVALID_ARGUMENT);
    ch_log_set_sink(count_record, &n, CH_LOG_WARNING);
    assert_true(ch_device_count("CPU") > 0);
    ch_log_set_sink(NULL, NULL, CH_LOG_WARNING);
    assert_int_equal(n, 1);
    assert_int_equal(ch__config_set("devices", ""), CH_OK);
    (void)state;
}

static void a_device_is_found_by_any_form_of_its_name(void **state)
{
    static const char *const names[] = {"GPU:1", "/gpu:1", "/device:GPU:1",
                                        "/job:localhost/replica:0/task:0/device:GPU:1"};
    ch_device               *d = NULL;

    assert_int_equal(configure("GPU=2"), CH_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ch_device_find(names[i], &d), CH_OK);
        assert_ptr_equal(d, ch_device_at(2));
    }
    assert_int_equal(ch_device_find("", &d), CH_OK);
    assert_ptr_equal(d, ch_device_at(0));
    (void)state;
}

/* The setting that the error names provides the wanted device, and keeps the others. */
static void device_error_names_the_setting_that_helps(void **state)
{
    static const struct {
        const char *have, *want, *setting;
    } row[] = {
        {"CPU=2", "GPU:3", "COHORT_DEVICES=CPU=2,GPU=4,"},
        {"CPU=2", "CPU:2", "COHORT_DEVICES=CPU=3,"},
        {"CPU=1,GPU=2", "gpu:2", "COHORT_DEVICES=CPU=1,GPU=3,"},
        {"CPU=1,GPU=2", "tpu:0", "COHORT_DEVICES=CPU=1,GPU=2,TPU=1,"},
        {"CPU=1,GPU=900", "tpu:0", "COHORT_DEVICES=CPU=1,GPU=900,TPU=1,"},
    };
    ch_device *d = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        char   spec[64];
        size_t n = strlen(row[i].setting);

        assert_int_equal(configure(row[i].have), CH_OK);
        assert_int_equal(ch_device_find(row[i].want, &d), CH_INVALID_ARGUMENT);
        if (strstr(ch_error_message(), row[i].setting) == NULL)
            fail_msg("\"%s\" has not %s", ch_error_message(), row[i].setting);
        assert_non_null(strstr(ch_error_message(), "ch_devices_configure"));
        ch__devices_reset();
        snprintf(spec, sizeof(spec), "%.*s", (int)(n - 16), row[i].setting + 15);
        assert_int_equal(configure(spec), CH_OK);
        assert_int_equal(ch_device_find(row[i].want, &d), CH_OK);
        ch__devices_reset();
    }
}

/* A device of another task cannot be obtained by any number of local devices. */
static void device_error_names_no_setting_when_the_device_is_of_another_task(void **state)
{
    ch_device *d = NULL;

    (void)state;
    assert_int_equal(configure("GPU=2"), CH_OK);
    assert_int_equal(ch_device_find("/job:other/gpu:2", &d), CH_INVALID_ARGUMENT);
    assert_null(strstr(ch_error_message(), "COHORT_DEVICES"));
}

static void device_find_lists_the_devices_when_none_matches(void **state)
{
    ch_device *d = NULL;

    assert_int_equal(configure("GPU=2"), CH_OK);
    assert_int_equal(ch_device_find("GPU:2", &d), CH_INVALID_ARGUMENT);
    assert_non_null(strstr(ch_error_message(), "task:0/device:GPU:2"));
    for (int i = 0; i < 3; i++)
        assert_non_null(strstr(ch_error_message(), ch_device_name(ch_device_at(i))));
    assert_int_equal(ch_device_find("/job:other/cpu:0", &d), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_device_find("/foo:0", &d), CH_INVALID_ARGUMENT);
    assert_int_equal(ch_device_find(NULL, &d), CH_INVALID_ARGUMENT);
    assert_null(d);
    (void)state;
}

static void device_enter_nests_and_extra_device_leave_is_harmless(void **state)
{
    assert_int_equal(configure("GPU=2"), CH_OK);
    ch_device_leave();
    assert_ptr_equal(ch_device_current(), ch_device_at(0));
    assert_int_equal(ch_device_enter(ch_device_at(1)), CH_OK);
    for (int i = 1; i < 64; i++)
        assert_int_equal(ch_device_enter(ch_device_at(2)), CH_OK);
    assert_int_equal(ch_device_enter(ch_device_at(2)), CH_FAILED_PRECONDITION);
    for (int i = 1; i < 64; i++)
        ch_device_leave();
    assert_ptr_equal(ch_device_current(), ch_device_at(1));
    ch_device_leave();
    ch_device_leave();
    assert_ptr_equal(ch_device_current(), ch_device_at(0));
    assert_int_equal(ch_device_enter(NULL), CH_INVALID_ARGUMENT);
    (void)state;
}

static void tensors_are_made_on_the_current_device_and_counted_there(void **state)
{
    ch_tensor *t = NULL;

    assert_int_equal(configure("GPU=2"), CH_OK);
    assert_int_equal(ch_device_enter(ch_device_at(2)), CH_OK);
    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(10), &t), CH_OK);
    ch_device_leave();
    assert_ptr_equal(ch_tensor_device(t), ch_device_at(2));
    assert_int_equal(ch_device_bytes(ch_device_at(2)), 40);
    assert_int_equal(ch_device_bytes(ch_device_at(0)), 0);
    ch_tensor_unref(t);
    assert_int_equal(ch_device_bytes(ch_device_at(2)), 0);
    (void)state;
}

/* If devices shared a cache line, runs on different devices would slow each other's writes. */
static void devices_share_no_cache_line(void **state)
{
    assert_int_equal(configure("CPU=3"), CH_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal((uintptr_t)ch_device_at(i) % CH_ALIGN, 0);
        assert_int_equal((uintptr_t)&ch_device_at(i)->hold % CH_ALIGN, 0);
    }
    (void)state;
}

static void device_workspace_grows_and_counts_generations(void **state)
{
    ch_device   *d = ch_device_at(0);
    ch_workspace a, b, c;

    ch__devices_hold(1, &d);
    assert_int_equal(ch__device_workspace(d, 100, false, &a), CH_OK);
    assert_int_equal(ch__device_workspace(d, 50, false, &b), CH_OK);
    assert_ptr_equal(b.base, a.base);
    assert_int_equal(b.generation, a.generation);
    assert_int_equal((uintptr_t)a.base % CH_ALIGN, 0);
    assert_int_equal(ch__device_workspace(d, 1000, false, &c), CH_OK);
    assert_int_not_equal(c.generation, a.generation);
    assert_true(c.bytes >= 1000);
    assert_int_equal(ch_device_bytes(d), c.bytes);

    ch__mem_fail_at(1);
    assert_int_equal(ch__device_workspace(d, 2000, false, &c), CH_RESOURCE_EXHAUSTED);
    ch__mem_fail_at(0);
    assert_int_equal(ch_device_bytes(d), 0);
    assert_int_equal(ch__device_workspace(d, 10, false, &b), CH_OK);
    assert_int_not_equal(b.generation, c.generation);
    ch__devices_release(1, &d);
    (void)state;
}

static void a_device_of_one_thread_has_no_team(void **state)
{
    ch_team *team = NULL, *again = NULL;

    assert_int_equal(configure("CPU=1"), CH_OK);
    assert_int_equal(ch__device_team(ch_device_at(0), &team), CH_OK);
    assert_null(team);
    ch__devices_reset();
    assert_int_equal(ch_devices_configure(&(ch_devices_options){.spec = "CPU=1", .threads = 3}),
                     CH_OK);
    assert_int_equal(ch__device_team(ch_device_at(0), &team), CH_OK);
    assert_int_equal(ch__team_size(team), 3);
    assert_int_equal(ch__device_team(ch_device_at(0), &again), CH_OK);
    assert_ptr_equal(again, team);
    (void)state;
}

enum { N = 4 };

typedef struct visit {
    ch_device *want, *got;
    pthread_t  thread;
    int        n_runs;
} visit;

static void visit_job(void *arg)
{
    visit *v = arg;

    v->got = ch_device_current();
    v->thread = pthread_self();
    v->n_runs++;
}

static void devices_run_runs_each_job_once_on_its_device(void **state)
{
    visit      v[N] = {0};
    ch_device *device[N];
    void      *arg[N];

    assert_int_equal(configure("GPU=4"), CH_OK);
    for (int i = 0; i < N; i++) {
        device[i] = ch_device_at(i + 1);
        arg[i] = &v[i];
    }
    ch__devices_hold(N, device);
    for (int k = 1; k <= 1000; k++) {
        assert_int_equal(ch__devices_run(N, device, visit_job, arg), CH_OK);
        for (int i = 0; i < N; i++) {
            assert_ptr_equal(v[i].got, device[i]);
            assert_int_equal(v[i].n_runs, k);
        }
    }
    assert_true(pthread_equal(v[0].thread, pthread_self()));
    for (int i = 1; i < N; i++)
        for (int k = 0; k < i; k++)
            assert_false(pthread_equal(v[i].thread, v[k].thread));
    assert_ptr_equal(ch_device_current(), ch_device_at(0));
    ch__devices_release(N, device);
    (void)state;
}

/* Two threads launch on the same devices. During a run, the devices belong to its launch
 * alone. */
typedef struct launch {
    ch_device *device[2];
    int       *sum;
} launch;

static void add_job(void *arg)
{
    ++*(int *)arg;
}

static void *launch_often(void *arg)
{
    launch *l = arg;
    void   *args[] = {&l->sum[0], &l->sum[1]};

    for (int i = 0; i < 500; i++) {
        ch__devices_hold(2, l->device);
        if (ch__devices_run(2, l->device, add_job, args) != CH_OK)
            return arg; /* the devices stay held: the test has ended */
        ch__devices_release(2, l->device);
    }
    return NULL;
}

static void held_devices_run_one_launch_at_a_time(void **state)
{
    int       sum[2] = {0};
    pthread_t other;
    void     *result;

    assert_int_equal(configure("CPU=2"), CH_OK);
    launch l = {{ch_device_at(0), ch_device_at(1)}, sum};
    assert_int_equal(pthread_create(&other, NULL, launch_often, &l), 0);
    assert_null(launch_often(&l));
    assert_int_equal(pthread_join(other, &result), 0);
    assert_null(result);
    assert_int_equal(sum[0], 1000);
    assert_int_equal(sum[1], 1000);
    (void)state;
}

static void devices_run_runs_nothing_when_threads_cannot_start(void **state)
{
    visit v[2] = {0};

    assert_int_equal(configure("CPU=2"), CH_OK);
    ch_device *device[] = {ch_device_at(0), ch_device_at(1)};
    ch__mem_fail_at(1);
    assert_int_equal(ch__devices_run(2, device, visit_job, (void *[]){&v[0], &v[1]}),
                     CH_RESOURCE_EXHAUSTED);
    ch__mem_fail_at(0);
    assert_int_equal(v[0].n_runs + v[1].n_runs, 0);
    assert_int_equal(ch__devices_run(2, device, visit_job, (void *[]){&v[0], &v[1]}), CH_OK);
    assert_int_equal(v[0].n_runs + v[1].n_runs, 2);
    (void)state;
}

/* Work that the threads of some devices share: the numbers below N_SHARED, each once. */
enum { N_SHARED = 5000 };

typedef struct shared {
    atomic_int next;
    atomic_int times[N_SHARED];
} shared;

static void take_numbers(void *arg)
{
    shared *s = arg;

    for (int i; (i = atomic_fetch_add(&s->next, 1)) < N_SHARED;)
        s->times[i]++;
}

static void devices_share_work_until_it_is_done(void **state)
{
    static const struct {
        const char *spec;
        int         n_devices, n_threads;
    } cases[] = {{"CPU=1", 1, 1}, {"CPU=1", 1, 3}, {"CPU=3", 3, 1}, {"CPU=2", 2, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static shared s;
        ch_device    *device[3];
        int           n = cases[i].n_devices;

        ch__devices_reset();
        assert_int_equal(ch_devices_configure(&(ch_devices_options){
                             .spec = cases[i].spec, .threads = cases[i].n_threads}),
                         CH_OK);
        for (int k = 0; k < n; k++)
            device[k] = ch_device_at(n - 1 - k); /* any order */
        memset(&s, 0, sizeof(s));
        assert_int_equal(ch__devices_share_work(n, device, take_numbers, &s), CH_OK);
        for (int k = 0; k < N_SHARED; k++)
            assert_int_equal(s.times[k], 1);
        ch__devices_hold(n, device); /* they are not held any more */
        ch__devices_release(n, device);
    }
}

static void devices_share_no_work_when_out_of_memory(void **state)
{
    shared     s = {.next = 0};
    ch_device *device[2];
    ch_status  rc = CH_RESOURCE_EXHAUSTED;

    (void)state;
    assert_int_equal(ch_devices_configure(&(ch_devices_options){.spec = "CPU=2", .threads = 2}),
                     CH_OK);
    for (int k = 0; k < 2; k++)
        device[k] = ch_device_at(k);
    for (int i = 1; rc != CH_OK; i++) {
        assert_int_equal(rc, CH_RESOURCE_EXHAUSTED);
        assert_int_equal(s.next, 0);
        ch__mem_fail_at(i);
        rc = ch__devices_share_work(2, device, take_numbers, &s);
        ch__mem_fail_at(0);
    }
    assert_true(s.next >= N_SHARED);
}

static void devices_crowded_is_true_for_more_threads_than_cores(void **state)
{
    ch_device *device[2];

    assert_int_equal(ch_devices_configure(
                         &(ch_devices_options){.spec = "CPU=2", .threads = ch__cpu_count()}),
                     CH_OK);
    device[0] = ch_device_at(0);
    device[1] = ch_device_at(1);
    assert_false(ch__devices_oversubscribed(1, device));
    assert_true(ch__devices_oversubscribed(2, device));
    (void)state;
}

static int run_in_child(void)
{
    visit      v = {0};
    ch_device *d = ch_device_at(0);
    ch_team   *team;

    if (ch__devices_run(1, &d, visit_job, (void *[]){&v}) != CH_FAILED_PRECONDITION)
        return 1;
    if (strstr(ch_error_message(), "forked") == NULL || v.n_runs != 0)
        return 2;
    return ch__device_team(d, &team) == CH_FAILED_PRECONDITION ? 0 : 3;
}

static void a_forked_child_is_refused_the_devices_of_its_parent(void **state)
{
    int result;

    assert_int_equal(configure("CPU=2"), CH_OK);
    pid_t child = fork();
    if (child == 0)
        _exit(run_in_child());
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
    (void)state;
}

static int use_in_child(void)
{
    visit      v = {0};
    ch_device *d = ch_device_at(0);

    return ch__devices_run(1, &d, visit_job, (void *[]){&v}) == CH_OK ? 0 : 1;
}

static void a_child_forked_before_the_first_use_has_devices_of_its_own(void **state)
{
    int   result;
    pid_t child = fork();

    if (child == 0)
        _exit(use_in_child());
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
    (void)state;
}

/* Uses devices from the first call on, including the device table. */
static ch_status scenario(void)
{
    ch_tensor *t = NULL;
    visit      v[2] = {0};
    ch_team   *team;
    ch_status  st = ch_devices_configure(&(ch_devices_options){.spec = "CPU=2", .threads = 2});

    if (st == CH_OK)
        st = ch_tensor_new(CH_F32, ch_shape_of(3), &t);
    if (st == CH_OK)
        st = ch__device_team(ch_device_at(0), &team);
    if (st == CH_OK)
        st = ch__devices_run(2, (ch_device *[]){ch_device_at(0), ch_device_at(1)}, visit_job,
                             (void *[]){&v[0], &v[1]});
    ch_tensor_unref(t);
    ch__devices_reset();
    return st;
}

static void devices_leak_nothing_when_out_of_memory(void **state)
{
    ch_status st = scenario();
    int64_t   live = ch__mem_live();

    assert_int_equal(st, CH_OK);
    for (int64_t n = 1;; n++) {
        ch__mem_fail_at(n);
        st = scenario();
        ch__mem_fail_at(0);
        assert_int_equal(ch__mem_live(), live);
        if (st == CH_OK)
            break;
        assert_int_equal(st, CH_RESOURCE_EXHAUSTED);
        assert_true(n < 100);
    }
    (void)state;
}

static void devices_are_made_later_when_out_of_memory_at_first(void **state)
{
    ch_tensor *t = NULL;
    ch_device *d = NULL;

    ch__mem_fail_from(1);
    assert_int_equal(ch_device_count(NULL), 0);
    assert_null(ch_device_at(0));
    assert_null(ch_device_current());
    assert_int_equal(ch_tensor_new(CH_F32, ch_shape_of(3), &t), CH_RESOURCE_EXHAUSTED);
    assert_int_equal(ch_device_find("CPU:0", &d), CH_RESOURCE_EXHAUSTED);
    ch__mem_fail_from(0);
    assert_true(ch_device_count(NULL) > 0);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(devices_are_the_cores_by_default, reset),
        cmocka_unit_test_teardown(devices_stand_in_the_order_of_the_text_after_the_cpus, reset),
        cmocka_unit_test_teardown(devices_always_include_the_host, reset),
        cmocka_unit_test_teardown(device_error_names_the_setting_that_helps, reset),
        cmocka_unit_test_teardown(
            device_error_names_no_setting_when_the_device_is_of_another_task, reset),
        cmocka_unit_test_teardown(devices_configure_rejects_malformed_text_and_shows_the_form,
                                  reset),
        cmocka_unit_test_teardown(devices_configure_rejects_invalid_options, reset),
        cmocka_unit_test_teardown(devices_in_use_can_only_be_configured_as_they_are, reset),
        cmocka_unit_test_teardown(devices_follow_the_settings_devices_and_threads, reset),
        cmocka_unit_test_teardown(devices_setting_that_is_malformed_is_ignored_with_a_warning,
                                  reset),
        cmocka_unit_test_teardown(a_device_is_found_by_any_form_of_its_name, reset),
        cmocka_unit_test_teardown(device_find_lists_the_devices_when_none_matches, reset),
        cmocka_unit_test_teardown(device_enter_nests_and_extra_device_leave_is_harmless, reset),
        cmocka_unit_test_teardown(tensors_are_made_on_the_current_device_and_counted_there,
                                  reset),
        cmocka_unit_test_teardown(devices_share_no_cache_line, reset),
        cmocka_unit_test_teardown(device_workspace_grows_and_counts_generations, reset),
        cmocka_unit_test_teardown(a_device_of_one_thread_has_no_team, reset),
        cmocka_unit_test_teardown(devices_run_runs_each_job_once_on_its_device, reset),
        cmocka_unit_test_teardown(held_devices_run_one_launch_at_a_time, reset),
        cmocka_unit_test_teardown(devices_run_runs_nothing_when_threads_cannot_start, reset),
        cmocka_unit_test_teardown(devices_share_work_until_it_is_done, reset),
        cmocka_unit_test_teardown(devices_share_no_work_when_out_of_memory, reset),
        cmocka_unit_test_teardown(devices_crowded_is_true_for_more_threads_than_cores, reset),
        cmocka_unit_test_teardown(a_forked_child_is_refused_the_devices_of_its_parent, reset),
        cmocka_unit_test_teardown(a_child_forked_before_the_first_use_has_devices_of_its_own,
                                  reset),
        cmocka_unit_test_teardown(devices_leak_nothing_when_out_of_memory, reset),
        cmocka_unit_test_teardown(devices_are_made_later_when_out_of_memory_at_first, reset),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
