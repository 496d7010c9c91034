/* cluster/gpus.c -- counting GPUs, by the environment or by nvidia-smi.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* environ, pipe2 */
#include "cluster/gpus.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "cluster/resolver.h"

static int count_items(const char *text)
{
    int n = text[0] != '\0';

    for (; *text != '\0'; text++)
        n += *text == ',';
    return n;
}

/* Lines that begin with "GPU ", as they come in. */
typedef struct lines {
    int    n;
    size_t at; /* in the line */
    bool   fits;
} lines;

static void count_lines(lines *l, const char *bytes, size_t n)
{
    static const char begins[] = "GPU ";

    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '\n') {
            l->at = 0;
            continue;
        }
        l->fits = (l->at == 0 || l->fits) && l->at < 4 && bytes[i] == begins[l->at];
        l->n += l->fits && l->at == 3;
        l->at++;
    }
}

static int read_lines(int from)
{
    lines   l = {0};
    char    bytes[512];
    ssize_t n;

    while ((n = read(from, bytes, sizeof(bytes))) > 0 || (n < 0 && errno == EINTR))
        if (n > 0)
            count_lines(&l, bytes, (size_t)n);
    return l.n;
}

/* 0, or why it could not be started. */
static int start(int out, pid_t *pid)
{
    static char                arg0[] = "nvidia-smi", arg1[] = "--list-gpus";
    char *const                argv[] = {arg0, arg1, NULL};
    posix_spawn_file_actions_t files;
    int                        error = posix_spawn_file_actions_init(&files);

    if (error != 0)
        return error;
    error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&files, out, 1);
    if (error == 0)
        error = posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    if (error == 0)
        error = posix_spawnp(pid, arg0, &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    return error;
}

static ch_status wait_for(pid_t pid)
{
    int status = 0;

    while (waitpid(pid, &status, 0) < 0)
        if (errno == ECHILD)
            return CH_OK; /* the program's handler of SIGCHLD took it: what it printed counts */
        else if (errno != EINTR)
            return ch__fail(CH_FAILED_PRECONDITION, "nvidia-smi --list-gpus: %s",
                            strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return CH_OK;
    return ch__fail(
        CH_FAILED_PRECONDITION,
        "counting GPUs: nvidia-smi --list-gpus failed, %s %d; say gpus_per_node, or "
        "set CUDA_VISIBLE_DEVICES",
        WIFEXITED(status) ? "status" : "signal",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static ch_status ask_nvidia(int *out)
{
    int       pipes[2], error, n;
    pid_t     pid = -1;
    ch_status rc;

    if (pipe2(pipes, O_CLOEXEC) != 0)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "counting GPUs: no pipe: %s", strerror(errno));
    error = start(pipes[1], &pid);
    close(pipes[1]);
    n = error == 0 ? read_lines(pipes[0]) : 0;
    close(pipes[0]);
    if (error == ENOENT) {
        ch__log(CH_LOG_INFO, "cluster", "no nvidia-smi: this machine counts as without GPUs");
        *out = 0;
        return CH_OK;
    }
    rc = error == 0
             ? wait_for(pid)
             : ch__fail(CH_FAILED_PRECONDITION,
                        "counting GPUs: nvidia-smi could not be started: %s", strerror(error));
    if (rc == CH_OK)
        *out = n;
    return rc;
}

ch_status ch__count_gpus(int *out)
{
    const char *visible = ch__variable("CUDA_VISIBLE_DEVICES");

    if (visible == NULL)
        return ask_nvidia(out);
    *out = count_items(visible);
    return CH_OK;
}
