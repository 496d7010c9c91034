/* cluster/gpus.c -- counts the GPUs of the machine.
 *
 * CUDA_VISIBLE_DEVICES comes first. If it is not set, nvidia-smi --list-gpus is run and its
 * lines are counted.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* for environ and pipe2 */
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

/* Returns the number of items of a comma-separated list. */
static int count_items(const char *text)
{
    int n = text[0] != '\0';

    for (; *text != '\0'; text++)
        n += *text == ',';
    return n;
}

/* Reads from a pipe until its end. Returns the number of lines that begin with "GPU ". */
static int count_lines(int from)
{
    static const char begins[] = "GPU ";
    char              bytes[512];
    bool              is_prefix = false; /* the line has matched `begins` up to here */
    size_t            at = 0;            /* position in the line */
    int               lines = 0;
    ssize_t           n;

    while ((n = read(from, bytes, sizeof(bytes))) > 0 || (n < 0 && errno == EINTR))
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] == '\n') {
                at = 0;
                continue;
            }
            is_prefix = (at == 0 || is_prefix) && at < 4 && bytes[i] == begins[at];
            lines += is_prefix && at == 3;
            at++;
        }
    return lines;
}

/* Starts nvidia-smi with its output to the descriptor `out`. Returns 0 or an errno value. */
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

/* Waits for the process. Returns FAILED_PRECONDITION if it failed. */
static ch_status wait_for(pid_t pid)
{
    int status = 0;

    /* ECHILD: the program's SIGCHLD handler has already waited for the process. Its output was
     * read before, so the count is valid. */
    while (waitpid(pid, &status, 0) < 0)
        if (errno == ECHILD)
            return CH_OK;
        else if (errno != EINTR)
            return ch__fail(CH_FAILED_PRECONDITION, "nvidia-smi --list-gpus: %s",
                            strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return CH_OK;
    return ch__fail(CH_FAILED_PRECONDITION,
                    "counting GPUs: nvidia-smi --list-gpus failed, %s %d; set gpus_per_node or "
                    "CUDA_VISIBLE_DEVICES",
                    WIFEXITED(status) ? "status" : "signal",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

/* Counts the GPUs that nvidia-smi lists; 0 if there is no such program. */
static ch_status run_nvidia_smi(int *out)
{
    int       pipes[2], error, n;
    pid_t     pid = -1;
    ch_status rc;

    if (pipe2(pipes, O_CLOEXEC) != 0)
        return ch__fail(CH_RESOURCE_EXHAUSTED, "counting GPUs: no pipe: %s", strerror(errno));
    error = start(pipes[1], &pid);
    close(pipes[1]);
    n = error == 0 ? count_lines(pipes[0]) : 0;
    close(pipes[0]);
    if (error == ENOENT) {
        ch__log(CH_LOG_INFO, "cluster",
                "no nvidia-smi: assuming that this machine has no GPUs");
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
    const char *visible = ch__env("CUDA_VISIBLE_DEVICES");

    if (visible == NULL)
        return run_nvidia_smi(out);
    *out = count_items(visible);
    return CH_OK;
}
