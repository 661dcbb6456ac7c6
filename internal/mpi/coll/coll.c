/* coll OPERATION BYTES COUNT WARM-UP REPEAT measures a collective operation: it prints REPEAT lines of how many nanoseconds one of
 * COUNT operations takes at the slowest rank, and first how many elements were wrong. BYTES are those of the larger buffer. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int rank, size;
static size_t n, part; /* elements of x, and of a part */
static float *x, *own;

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static float before(int r, size_t i) { return (float)(r + (int)(i % 1000)); }

static float sum(size_t i) { return (float)(size * (size - 1) / 2 + size * (int)(i % 1000)); }

static void allreduce(void) { MPI_Allreduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }

static void broadcast(void) { MPI_Bcast(x, (int)n, MPI_FLOAT, 0, MPI_COMM_WORLD); }

static void reduce(void) {
    if (rank == 0)
        MPI_Reduce(MPI_IN_PLACE, x, (int)n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    else
        MPI_Reduce(x, NULL, (int)n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}

static void allgather(void) { MPI_Allgather(own, (int)part, MPI_FLOAT, x, (int)part, MPI_FLOAT, MPI_COMM_WORLD); }

static void reducescatter(void) { MPI_Reduce_scatter_block(x, own, (int)part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static float wants_sum(size_t i) { return sum(i); }
static float wants_first(size_t i) { return before(0, i); }
static float wants_reduced(size_t i) { return rank == 0 ? sum(i) : before(rank, i); }
static float wants_gathered(size_t i) { return before((int)(i / part), i); }
static float wants_own(size_t i) { return before(rank, i); }

static const struct {
    const char *name;
    void (*once)(void);
    float (*wants)(size_t);
    int parts;
} operations[] = {
    {"allreduce", allreduce, wants_sum, 0},        {"broadcast", broadcast, wants_first, 0},
    {"reduce", reduce, wants_reduced, 0},          {"allgather", allgather, wants_gathered, 1},
    {"reducescatter", reducescatter, wants_own, 1}, {"barrier", barrier, wants_own, 0},
};

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    size_t op = 0, ops = sizeof operations / sizeof *operations;
    while (argc == 6 && op < ops && strcmp(argv[1], operations[op].name))
        op++;
    if (argc != 6 || op == ops)
        MPI_Abort(MPI_COMM_WORLD, 2);
    n = strtoull(argv[2], NULL, 10) / 4;
    int count = atoi(argv[3]), warm_up = atoi(argv[4]), repeat = atoi(argv[5]);
    n = n ? n : 1;
    part = n / (size_t)size ? n / (size_t)size : 1;
    if (operations[op].parts)
        n = part * (size_t)size;
    x = malloc(4 * n);
    own = malloc(4 * part);
    if (!x || !own)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t i = 0; i < n; i++)
        x[i] = before(rank, i);
    for (size_t i = 0; i < part; i++)
        own[i] = before(rank, (size_t)rank * part + i);
    operations[op].once();
    int64_t wrong = 0, all = 0;
    if (operations[op].once == reducescatter) {
        for (size_t i = 0; i < part; i++)
            wrong += own[i] != sum((size_t)rank * part + i);
    } else {
        for (size_t i = 0; i < n; i++)
            wrong += x[i] != operations[op].wants(i);
    }
    MPI_Reduce(&wrong, &all, 1, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%lld\n", (long long)all);
    for (int i = 0; i < warm_up; i++)
        operations[op].once();
    for (int r = 0; r < repeat; r++) {
        MPI_Barrier(MPI_COMM_WORLD);
        int64_t begun = now(), took, slowest;
        for (int i = 0; i < count; i++)
            operations[op].once();
        took = (now() - begun) / count;
        MPI_Reduce(&took, &slowest, 1, MPI_INT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0)
            printf("%lld\n", (long long)slowest);
    }
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
