/* bench/bench.c -- rounds, medians, the table and the lines of JSON.
 *
 * In each round every side (our code, a peer, the limit) executes a block: a sample that is
 * discarded, while caches fill and the threads of the previous side fall asleep, and then the
 * samples that count. A sample has as many runs as take 20 ms, so that the resolution of the
 * clock and the scheduler's tick have no effect. The file has the functions of bench.h; its
 * main structs are `bench` (the options of the program) and `side`.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* pipe2 */
#include "bench.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if BENCH_HAS_OPENBLAS
#include <cblas.h>
#endif

#define MAX_SIDES   (BENCH_MAX_PEERS + 2)
#define MAX_ROUNDS  15
#define DISTURBED   0.15 /* a spread above this needs more rounds */
#define MAX_SAMPLES 5
#define MAX_RUNS    ((int64_t)1 << 40)
#define ANSWER_S    600
#define NAME_WIDTH  44 /* columns of a case's name; a longer name has its own line */
#define REST_NS     200000000

struct bench {
    const char *name;
    bool        json, peers, quick, ours, once;
    int         n_words;
    char      **word;
    int         n_rounds;
    double      sample_s;  /* shortest time of a sample */
    double      warm_up_s; /* longest time of a warm-up */
    bool        has_header, has_failed;
};

typedef struct side {
    const bench_side *what;
    FILE             *to, *from; /* pipes to and from the peer's program */
    pid_t             pid;
    int64_t           n;                 /* runs in a sample */
    int               n_samples;         /* samples in a block */
    double            round[MAX_ROUNDS]; /* median seconds of a run */
    double seconds, spread; /* median of all rounds; half the range, divided by the median */
    bool   is_lost;
} side;

double bench_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(const double *x, int n)
{
    double sorted[MAX_ROUNDS];

    memcpy(sorted, x, sizeof(*x) * (size_t)n);
    qsort(sorted, (size_t)n, sizeof(*sorted), by_value);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* Sides */

/* Process groups of the peers. Peers are stopped (SIGSTOP) when it is not their turn, because
 * idle threads of some programs spin. Processes that leave the group are not stopped: mpirun's
 * ranks. */
static volatile pid_t group[BENCH_MAX_PEERS];

static void end_groups(int signal_number)
{
    for (int i = 0; i < BENCH_MAX_PEERS; i++)
        if (group[i] > 0)
            (void)kill(-group[i], SIGKILL);
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

static void note_group(pid_t old, pid_t new)
{
    int i = 0;

    while (i < BENCH_MAX_PEERS && group[i] != old)
        i++;
    if (i < BENCH_MAX_PEERS)
        group[i] = new;
}

static void side_tell(const side *s, int signal_number)
{
    if (s->pid > 0)
        (void)kill(-s->pid, signal_number);
}

static bool side_start(side *s, const bench_side *what)
{
    int down[2], up[2];

    *s = (side){.what = what};
    if (what->command == NULL)
        return true;
    if (pipe2(down, O_CLOEXEC) != 0)
        return false;
    if (pipe2(up, O_CLOEXEC) != 0) {
        close(down[0]);
        close(down[1]);
        return false;
    }
    s->pid = fork();
    if (s->pid == 0) {
        (void)setpgid(0, 0);
        dup2(down[0], STDIN_FILENO);
        dup2(up[1], STDOUT_FILENO);
        execl("/bin/sh", "sh", "-c", what->command, (char *)NULL);
        _exit(127);
    }
    if (s->pid > 0) {
        (void)setpgid(s->pid, s->pid); /* the child does it too; either may be first */
        note_group(0, s->pid);
    }
    close(down[0]);
    close(up[1]);
    s->to = fdopen(down[1], "w");
    s->from = fdopen(up[0], "r");
    return s->pid > 0 && s->to != NULL && s->from != NULL;
}

/* Ends a peer: closes its input, and waits for its exit. */
static void side_stop(side *s)
{
    side_tell(s, SIGCONT);
    if (s->to != NULL)
        fclose(s->to);
    if (s->from != NULL)
        fclose(s->from);
    if (s->pid > 0)
        waitpid(s->pid, NULL, 0);
    note_group(s->pid, 0);
}

/* Sends a line to a peer. Returns the number in its reply, or NAN if there is none. */
static double ask(side *s, const char *question)
{
    char          line[256], *end = line;
    struct pollfd wait = {.fd = fileno(s->from), .events = POLLIN};
    double        answer = NAN;

    side_tell(s, SIGCONT);
    if (fprintf(s->to, "%s\n", question) >= 0 && fflush(s->to) == 0 &&
        poll(&wait, 1, ANSWER_S * 1000) > 0 && fgets(line, sizeof(line), s->from) != NULL)
        answer = strtod(line, &end);
    side_tell(s, SIGSTOP);
    return end == line ? NAN : answer;
}

/* Executes n runs. Returns the seconds of a run. Sets is_lost if a peer does not reply. */
static double side_time(side *s, int64_t n)
{
    double begin, seconds;
    char   line[64];

    if (s->is_lost)
        return NAN;
    if (s->what->command != NULL) {
        snprintf(line, sizeof(line), "run %lld", (long long)n);
        seconds = ask(s, line);
        s->is_lost = !(seconds >= 0);
    } else {
        begin = bench_now();
        s->what->run(s->what->arg, n);
        seconds = bench_now() - begin;
    }
    return s->is_lost ? NAN : seconds / (double)n;
}

/* Finds the number of runs of a sample, then runs until three samples bring no improvement. */
static void side_warm_up(const bench *b, side *s)
{
    double begin = bench_now(), t = side_time(s, 1), best;

    for (s->n = 1; t * (double)s->n < b->sample_s && s->n < MAX_RUNS;) {
        s->n *= 2;
        t = side_time(s, s->n);
    }
    best = t;
    for (int idle = 0; idle < 3 && !s->is_lost && bench_now() - begin < b->warm_up_s;) {
        t = side_time(s, s->n);
        idle = t < 0.98 * best ? 0 : idle + 1;
        best = fmin(best, t);
    }
    t *= (double)s->n;
    s->n_samples = b->quick || t > 0.5 ? 1 : t > 0.1 ? 3 : MAX_SAMPLES;
}

static double side_block(side *s)
{
    double sample[MAX_SAMPLES];

    if (s->n_samples > 1)
        side_time(s, s->n);
    for (int i = 0; i < s->n_samples; i++)
        sample[i] = side_time(s, s->n);
    return median(sample, s->n_samples);
}

static void side_sum_up(side *s, int n_rounds)
{
    double low = INFINITY, high = 0;

    for (int i = 0; i < n_rounds; i++) {
        low = fmin(low, s->round[i]);
        high = fmax(high, s->round[i]);
    }
    s->seconds = median(s->round, n_rounds);
    s->spread = (high - low) / 2 / s->seconds;
}

/* Output */

typedef struct figure {
    double value;  /* NAN: no value */
    double spread; /* 0: unknown */
} figure;

static const figure no_figure = {NAN, 0};

static double figure_of(const bench_case *c, const side *s)
{
    return c->better == BENCH_LOWER ? c->scale * s->seconds : c->scale / s->seconds;
}

/* Returns a ratio that is above 1 if ours is better. */
static double ratio(bench_better better, double ours, double other)
{
    double r = better == BENCH_LOWER ? other / ours : ours / other;

    return ours == other ? 1 : isfinite(r) ? r : NAN;
}

static void json_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    putchar('"');
}

static void json_pair(const char *key, const char *text, double number)
{
    printf("%s\"%s\": ", strcmp(key, "name") == 0 ? "{" : ", ", key);
    if (text != NULL)
        json_text(text);
    else if (isnan(number))
        printf("null");
    else
        printf("%.6g", number);
}

static void cell(const figure *f, const char *unit)
{
    char text[64] = "-", spread[16] = "";

    if (!isnan(f->value))
        snprintf(text, sizeof(text), f->value < 1000 ? "%.3g %s" : "%.0f %s", f->value, unit);
    if (f->spread != 0)
        snprintf(spread, sizeof(spread), "+-%.0f%%", 100 * f->spread);
    printf("  %14s %5s", text, spread);
}

static void cell_ratio(double r)
{
    if (isnan(r))
        printf("  %8s", "-");
    else
        printf("  %8.2f", r);
}

static void print_header(bench *b)
{
    if (b->has_header)
        return;
    b->has_header = true;
    printf("%s, %ld cores", b->name, sysconf(_SC_NPROCESSORS_ONLN));
#if BENCH_HAS_OPENBLAS
    printf(", OpenBLAS for %s", openblas_get_corename());
#endif
    putchar('\n');
    printf("  %-*s  %20s  %20s  %20s  %8s  %8s  %s\n", NAME_WIDTH, "case", "ours      ",
           "peer      ", "limit      ", "to peer", "of limit", "peer");
}

static void print_row(bench *b, const char *name, const char *unit, bench_better better,
                      figure ours, figure peer, const char *peer_name, figure limit)
{
    double to_peer = ratio(better, ours.value, peer.value);
    double of_limit = ratio(better, ours.value, limit.value);

    if (b->json) {
        json_pair("name", b->name, NAN);
        json_pair("case", name, NAN);
        json_pair("ours", NULL, ours.value);
        json_pair("peer", NULL, peer.value);
        json_pair("peer_name", peer_name, NAN);
        json_pair("limit", NULL, limit.value);
        json_pair("unit", unit, NAN);
        json_pair("ratio_peer", NULL, to_peer);
        json_pair("ratio_limit", NULL, of_limit);
        printf("}\n");
    } else {
        print_header(b);
        if (strlen(name) > NAME_WIDTH)
            printf("  %s\n  %-*s", name, NAME_WIDTH, "");
        else
            printf("  %-*s", NAME_WIDTH, name);
        cell(&ours, unit);
        cell(&peer, unit);
        cell(&limit, unit);
        cell_ratio(to_peer);
        cell_ratio(of_limit);
        printf("  %s\n", peer_name != NULL ? peer_name : "-");
    }
    fflush(stdout);
}

void bench_void(bench *b, const char *case_name, const char *why)
{
    fprintf(stderr, "%s: %s: void: %s\n", b->name, case_name, why);
    b->has_failed = true;
}

void bench_add(bench *b, const char *case_name, const char *unit, bench_better better,
               double ours, double limit)
{
    if (bench_wants(b, case_name))
        print_row(b, case_name, unit, better, (figure){ours, 0}, no_figure, NULL,
                  (figure){limit, 0});
}

/* Cases */

static void report(bench *b, const bench_case *c, const side *s, int n_sides)
{
    figure      ours = {figure_of(c, &s[0]), s[0].spread}, peer = no_figure;
    figure      limit = {c->limit_figure != 0 ? c->limit_figure : NAN, 0};
    const char *peer_name = NULL;

    for (int i = 1; i < n_sides; i++) {
        figure f = {figure_of(c, &s[i]), s[i].spread};

        if (s[i].is_lost) {
            fprintf(stderr, "%s: %s: %s did not answer\n", b->name, c->name, s[i].what->name);
            b->has_failed = true;
        } else if (s[i].what == &c->limit) {
            limit = f;
        } else if (peer_name == NULL || ratio(c->better, f.value, peer.value) > 1) {
            peer = f;
            peer_name = s[i].what->name;
        }
    }
    print_row(b, c->name, c->unit, c->better, ours, peer, peer_name, limit);
}

static int start_sides(const bench *b, const bench_case *c, side *s)
{
    int n = 0;

    side_start(&s[n++], &c->ours);
    for (int i = 0; i < BENCH_MAX_PEERS && c->peer[i].name != NULL; i++)
        if (c->peer[i].command == NULL || b->peers) {
            bool started = side_start(&s[n], &c->peer[i]);

            s[n++].is_lost = !started;
        }
    if (c->limit.run != NULL && !b->ours)
        side_start(&s[n++], &c->limit);
    return n;
}

/* Returns true if the peers have the same result as ours. Sets is_lost if a peer does not
 * reply. */
static bool agree(const bench_case *c, side *s, int n, char *why, size_t size)
{
    double ours = c->result(c->ours.arg);

    for (int i = 0; i < n; i++) {
        double theirs = s[i].what->command != NULL && !s[i].is_lost ? ask(&s[i], "result") : 0;

        if (s[i].what->command == NULL || s[i].is_lost)
            continue;
        s[i].is_lost = isnan(theirs);
        if (fabs(ours - theirs) > c->tolerance * fabs(theirs)) {
            snprintf(why, size, "the result is %.9g, and %.9g of %s", ours, theirs,
                     s[i].what->name);
            return false;
        }
    }
    return true;
}

static void stop_sides(side *s, int n)
{
    for (int i = 0; i < n; i++)
        side_stop(&s[i]);
}

/* Measures all sides in turns. Adds rounds if the spread of a side is above DISTURBED. */
static void run_rounds(bench *b, const bench_case *c, side *s, int n)
{
    int most = b->n_rounds;

    for (int round = 0; round < most; round++) {
        for (int i = 0; i < n; i++) {
            if (c->rest && !b->quick)
                (void)nanosleep(&(struct timespec){.tv_nsec = REST_NS}, NULL);
            s[i].round[round] = side_block(&s[i]);
            side_sum_up(&s[i], round + 1);
        }
        for (int i = 0; i < n && !b->quick; i++)
            if (s[i].spread > DISTURBED)
                most = MAX_ROUNDS;
    }
}

void bench_run(bench *b, const bench_case *c)
{
    side s[MAX_SIDES];
    char why[256] = "";
    int  n;

    if (!bench_wants(b, c->name))
        return;
    if (c->check != NULL && !b->once && !c->check(c->ours.arg, why, sizeof(why))) {
        bench_void(b, c->name, why);
        return;
    }
    n = start_sides(b, c, s);
    if (c->result != NULL && !agree(c, s, n, why, sizeof(why))) {
        bench_void(b, c->name, why);
        stop_sides(s, n);
        return;
    }
    for (int i = 0; i < n; i++)
        if (s[i].what->command != NULL)
            side_time(&s[i], 1); /* waits for its start, which would disturb other sides */
    for (int i = 0; i < n; i++)
        side_warm_up(b, &s[i]);
    run_rounds(b, c, s, n);
    stop_sides(s, n);
    report(b, c, s, n);
}

bool bench_is_quick(const bench *b)
{
    return b->quick;
}

bool bench_is_small(const bench *b)
{
    return b->quick && !b->peers;
}

bool bench_wants(const bench *b, const char *case_name)
{
    for (int i = 0; i < b->n_words; i++)
        if (strstr(case_name, b->word[i]) != NULL)
            return true;
    return b->n_words == 0;
}

/* OpenBLAS chooses its kernels by the model of the CPU. For unknown new models it uses kernels
 * of 2004. A peer should have its best setting, so in that case the program sets
 * OPENBLAS_CORETYPE and executes itself again, because OpenBLAS reads the variable when it is
 * loaded. */
static void wake_openblas(char **argv)
{
#if BENCH_HAS_OPENBLAS && defined(__x86_64__)
    if (strcmp(openblas_get_corename(), "Prescott") != 0 || !__builtin_cpu_supports("avx2") ||
        getenv("OPENBLAS_CORETYPE") != NULL)
        return;
    setenv("OPENBLAS_CORETYPE", __builtin_cpu_supports("avx512bw") ? "SkylakeX" : "Haswell", 1);
    execv("/proc/self/exe", argv);
#endif
    (void)argv;
}

bench *bench_open(const char *name, int argc, char **argv)
{
    bench *b = calloc(1, sizeof(*b));

    wake_openblas(argv);
    if (b == NULL || (b->word = calloc((size_t)argc, sizeof(*b->word))) == NULL)
        exit(1);
    b->name = name;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            b->json = true;
        else if (strcmp(argv[i], "--peers") == 0)
            b->peers = true;
        else if (strcmp(argv[i], "--ours") == 0)
            b->ours = true;
        else if (strcmp(argv[i], "--quick") == 0)
            b->quick = true;
        else if (strcmp(argv[i], "--once") == 0)
            b->once = b->ours = true;
        else if (argv[i][0] != '-')
            b->word[b->n_words++] = argv[i];
        else {
            fprintf(stderr,
                    "usage: %s [--json] [--peers] [--ours] [--quick] [--once] [CASE...]\n",
                    argv[0]);
            exit(2);
        }
    }
    b->n_rounds = b->quick || b->once ? 1 : 7;
    b->sample_s = b->quick ? 1e-4 : 0.02;
    b->warm_up_s = b->quick ? 0 : b->once ? 0.3 : 3;
    signal(SIGPIPE, SIG_IGN); /* a write to a dead peer must return an error */
    signal(SIGINT, end_groups);
    signal(SIGTERM, end_groups);
    setenv("PEERS", BENCH_PEERS_DIR, 1);
    setenv("PYTHON", "/usr/bin/python3", 1); /* the Python that has the packages */
    return b;
}

int bench_close(bench *b)
{
    int code = b->has_failed ? 1 : 0;

    free(b->word);
    free(b);
    return code;
}
