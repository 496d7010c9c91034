/* test/data/test_resume.c -- a new process restores a position; threads do not change the
 * elements.
 *
 * The tests compare random pipelines (any.h) with an uninterrupted run. This program is also
 * the process that reads elements, saves its position and is killed, and the process that
 * continues: see work(). T_CASES is the number of pipelines; T_SEED selects them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../file/folder.h"
#include "any.h"

static int n_cases(int usual)
{
    return getenv("T_CASES") != NULL ? atoi(getenv("T_CASES")) : usual;
}

static uint64_t number_of(int i)
{
    return (getenv("T_SEED") != NULL ? strtoull(getenv("T_SEED"), NULL, 10) : 1) * 1000003 +
           (uint64_t)i;
}

static void run_all(uint64_t number, bool unordered, int threads, t_given *g)
{
    ch_dataset  *d = any_pipeline(t_folder, number, unordered, threads);
    ch_iterator *it = NULL;

    memset(g, 0, sizeof(*g));
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, -1, g);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    assert_null(strchr(g->text, '!'));
    assert_true(g->used < sizeof(g->text) - 1);
}

static void fail_case(uint64_t number, bool unordered, const char *what, const char *got,
                      const char *want)
{
    char        text[4000];
    ch_dataset *d = any_pipeline(t_folder, number, unordered, 0);

    ch_dataset_print(d, text, sizeof(text));
    ch_dataset_unref(d);
    fail_msg("pipeline %llu, %s:\n%s\nis not\n%s\n%s", (unsigned long long)number, what, got,
             want, text);
}

/* ---- order ---- */

static void pipeline_order_does_not_depend_on_threads(void **state)
{
    static t_given one, other;
    int            n = n_cases(60);

    (void)state;
    for (int i = 0; i < n; i++) {
        run_all(number_of(i), false, CH_OFF, &one);
        for (int threads = 1; threads <= 8; threads++) {
            run_all(number_of(i), false, threads, &other);
            if (strcmp(one.text, other.text) != 0)
                fail_case(number_of(i), false, "with other threads", other.text, one.text);
        }
    }
}

/* ---- elements without order ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorts the elements of `text`. */
static void sort_elements(char *text)
{
    static char  sorted[2 * sizeof(((t_given *)0)->text)];
    static char *at[20000];
    size_t       used = 0;
    int          n = 0;

    for (char *rest = text, *word; (word = strtok_r(rest, "| ", &rest)) != NULL && n < 20000;)
        at[n++] = word;
    qsort(at, (size_t)n, sizeof(at[0]), by_text);
    sorted[0] = '\0';
    for (int i = 0; i < n; i++)
        used += (size_t)snprintf(sorted + used, sizeof(sorted) - used, "%s ", at[i]);
    memcpy(text, sorted, used + 1);
}

/* ---- positions, in this process ---- */

static void take_up(uint64_t number, bool unordered, int n, int threads, t_given *g)
{
    ch_dataset  *d = any_pipeline(t_folder, number, unordered, threads);
    ch_dataset  *other = any_pipeline(t_folder, number, unordered, 7 - threads);
    ch_iterator *it = NULL;
    void        *bytes = NULL;
    size_t       size = 0;

    memset(g, 0, sizeof(*g));
    t_ok(ch_iterator_new(d, NULL, &it));
    t_take(it, n, g);
    t_ok(ch_iterator_save(it, &bytes, &size));
    ch_iterator_unref(it);
    it = NULL;
    t_ok(ch_iterator_new(threads % 2 ? d : other, NULL, &it));
    t_ok(ch_iterator_restore(it, bytes, size));
    t_take(it, -1, g);
    ch_bytes_free(bytes);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    ch_dataset_unref(other);
}

static void random_pipelines_restore_a_saved_position(void **state)
{
    static t_given whole, parts;
    dice           d = {5};
    int            n = n_cases(300);

    (void)state;
    for (int i = 0; i < n; i++) {
        int at;

        run_all(number_of(i), false, CH_OFF, &whole);
        at = (int)roll(&d, (uint64_t)whole.n + 2);
        take_up(number_of(i), false, at, 1 + (int)roll(&d, 4), &parts);
        if (strcmp(whole.text, parts.text) != 0)
            fail_case(number_of(i), false, "saved and taken up", parts.text, whole.text);
    }
}

static void unordered_pipelines_restore_each_element_once(void **state)
{
    static t_given whole, parts;
    dice           d = {6};
    int            n = n_cases(200);

    (void)state;
    for (int i = 0; i < n; i++) {
        int at;

        run_all(number_of(i), true, CH_OFF, &whole);
        at = (int)roll(&d, (uint64_t)whole.n + 2);
        take_up(number_of(i), true, at, 1 + (int)roll(&d, 4), &parts);
        sort_elements(whole.text);
        sort_elements(parts.text);
        if (strcmp(whole.text, parts.text) != 0)
            fail_case(number_of(i), true, "saved and taken up", parts.text, whole.text);
    }
}

/* ---- positions, in another process ---- */

static void write_bytes(const char *name, const void *data, size_t size)
{
    int fd = open(any_file(t_folder, name, "saved"), O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, size), size);
    close(fd);
}

static char *read_bytes(const char *name, size_t *size)
{
    static char data[1 << 20];
    FILE       *f = fopen(any_file(t_folder, name, "saved"), "rb");

    assert_non_null(f);
    *size = fread(data, 1, sizeof(data) - 1, f);
    data[*size] = '\0';
    fclose(f);
    return data;
}

/* The main function of the other processes. "begin": reads n elements, saves its position,
 * reports that, and continues until it is killed. "go-on": reads the rest from there. */
static int work(char **argv)
{
    static t_given g;
    bool           begins = strcmp(argv[1], "begin") == 0, unordered = argv[5][0] == 'u';
    uint64_t       number = strtoull(argv[3], NULL, 10);
    int            n = atoi(argv[4]);
    ch_dataset    *d;
    ch_iterator   *it = NULL;
    void          *bytes = NULL;
    size_t         size = 0;

    snprintf(t_folder, sizeof(t_folder), "%s", argv[2]);
    d = any_pipeline(t_folder, number, unordered, begins ? 3 : 2);
    t_ok(ch_iterator_new(d, NULL, &it));
    if (begins) {
        t_take(it, n, &g);
        write_bytes("head", g.text, g.used);
        t_ok(ch_iterator_save(it, &bytes, &size));
        write_bytes("place", bytes, size);
        if (write(STDOUT_FILENO, "s", 1) != 1)
            return 1;
        t_take(it, 3, &g);
        for (;;)
            pause();
    }
    bytes = read_bytes("place", &size);
    t_ok(ch_iterator_restore(it, bytes, size));
    t_take(it, -1, &g);
    write_bytes("rest", g.text, g.used);
    ch_iterator_unref(it);
    ch_dataset_unref(d);
    return 0;
}

/* Starts this program as such a process. *out is the pipe on which it reports that its position
 * is saved. */
static pid_t start(const char *what, uint64_t number, int n, bool unordered, int *out)
{
    char  number_text[32], n_text[32];
    int   ends[2];
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    snprintf(number_text, sizeof(number_text), "%llu", (unsigned long long)number);
    snprintf(n_text, sizeof(n_text), "%d", n);
    pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "test_resume", what, t_folder, number_text, n_text,
              unordered ? "unordered" : "ordered", (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    close(ends[1]);
    *out = ends[0];
    return pid;
}

static void killed_and_taken_up(uint64_t number, bool unordered, int n, char *text, size_t room)
{
    int    out, status;
    char   said;
    size_t size;
    pid_t  pid = start("begin", number, n, unordered, &out);

    assert_int_equal(read(out, &said, 1), 1);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    close(out);
    pid = start("go-on", number, n, unordered, &out);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    close(out);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    n = snprintf(text, room, "%s", read_bytes("head", &size));
    snprintf(text + n, room - (size_t)n, "%s%s",
             n > 0 && *read_bytes("rest", &size) ? " | " : "", read_bytes("rest", &size));
}

static void run_killed(bool unordered)
{
    static t_given whole;
    static char    parts[2 * sizeof(whole.text)];
    dice           d = {7};

    for (int i = 0; i < n_cases(20); i++) {
        uint64_t number = number_of(10000 + i);

        run_all(number, unordered, CH_OFF, &whole);
        killed_and_taken_up(number, unordered, (int)roll(&d, (uint64_t)whole.n + 2), parts,
                            sizeof(parts));
        if (unordered) {
            sort_elements(whole.text);
            sort_elements(parts);
        }
        if (strcmp(whole.text, parts) != 0)
            fail_case(number, unordered, "killed and taken up", parts, whole.text);
    }
}

static void new_process_restores_the_position_of_a_killed_one(void **state)
{
    (void)state;
    run_killed(false);
}

static void new_process_restores_each_element_once_after_unordered_stages(void **state)
{
    (void)state;
    run_killed(true);
}

static int make_directory(void **state)
{
    (void)state;
    if (t_folder_make(NULL) != 0)
        return -1;
    any_write_files(t_folder);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pipeline_order_does_not_depend_on_threads),
        cmocka_unit_test(random_pipelines_restore_a_saved_position),
        cmocka_unit_test(unordered_pipelines_restore_each_element_once),
        cmocka_unit_test(new_process_restores_the_position_of_a_killed_one),
        cmocka_unit_test(new_process_restores_each_element_once_after_unordered_stages),
    };

    if (argc == 6)
        return work(argv);
    return cmocka_run_group_tests(tests, make_directory, t_folder_remove);
}
