/* bench/peers/mpi_allreduce.c -- the peer of bench/allreduce.c: MPI_Allreduce in place.
 *
 * argv[1] is the size of the f32 array in bytes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Returns the number of runs that rank 0 reads from its input; 0: the input has ended. Other
 * ranks sleep until then, because a rank that spins in MPI would disturb the measurement of
 * other sides. */
static long times(int rank, int n_ranks)
{
    char line[64];
    long n = 0;
    int  is_there = 0;

    if (rank == 0) {
        n = fgets(line, sizeof(line), stdin) != NULL ? atol(line + 4) : 0; /* "run N" */
        for (int r = 1; r < n_ranks; r++)
            MPI_Send(&n, 1, MPI_LONG, r, 0, MPI_COMM_WORLD);
        return n;
    }
    for (;;) {
        MPI_Iprobe(0, 0, MPI_COMM_WORLD, &is_there, MPI_STATUS_IGNORE);
        if (is_there)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    MPI_Recv(&n, 1, MPI_LONG, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return n;
}

int main(int argc, char **argv)
{
    int    rank, n_ranks, count;
    long   n;
    float *x;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    count = argc > 1 ? (int)(atol(argv[1]) / (long)sizeof(float)) : 1;
    x = calloc((size_t)count + 1, sizeof(*x));
    while (x != NULL && (n = times(rank, n_ranks)) > 0) {
        double begin;

        MPI_Barrier(MPI_COMM_WORLD);
        begin = MPI_Wtime();
        for (long i = 0; i < n; i++)
            MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%.9g\n", MPI_Wtime() - begin);
            fflush(stdout);
        }
    }
    free(x);
    MPI_Finalize();
    return 0;
}
