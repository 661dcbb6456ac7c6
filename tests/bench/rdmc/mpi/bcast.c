/* bcast BYTES ROUNDS measures MPI_Bcast: from when the root begins to when the
 * last rank has everything, by the clock that all processes of a machine share.
 * One round before those is for checking what arrives. Prints nanoseconds. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 3)
        MPI_Abort(MPI_COMM_WORLD, 2);
    size_t n = strtoull(argv[1], NULL, 10);
    int rounds = atoi(argv[2]), rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    unsigned char *buf = malloc(n);
    memset(buf, 0, n);
    for (size_t i = 0; rank == 0 && i < n; i++)
        buf[i] = (unsigned char)(i * 2654435761u >> 13);
    for (int r = 0; r <= rounds; r++) {
        MPI_Barrier(MPI_COMM_WORLD);
        int64_t begin = now();
        MPI_Bcast(buf, (int)n, MPI_BYTE, 0, MPI_COMM_WORLD);
        int64_t end = now(), last;
        MPI_Reduce(&end, &last, 1, MPI_INT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
        for (size_t i = 0; r == 0 && i < n; i++)
            if (buf[i] != (unsigned char)(i * 2654435761u >> 13)) {
                fprintf(stderr, "rank %d has a wrong byte at %zu\n", rank, i);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        if (rank == 0 && r > 0)
            printf("%lld\n", (long long)(last - begin));
    }
    MPI_Finalize();
    return 0;
}
