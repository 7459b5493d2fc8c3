/* AMX for processors that have none: executes the instructions on tiles when the processor raises
   "invalid opcode" for them (SIGILL), so that code made of them runs on any x86-64 Linux machine.

   Written from the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. Rules
   that code must keep are checked (a configuration in force, sizes that fit); a breach ends in
   SIGILL, as the processor would raise an exception. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

typedef struct {
    uint8_t rows[8];
    uint16_t bytes[8];
    int configured;
    uint8_t data[8][16][64];
} Tiles;

static __thread Tiles tiles;
static struct sigaction before;
long amx_count; /* instructions that were executed */

static const int REGISTERS[16] = {
    REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
    REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
};

static float wide(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
}

/* dst = tile d, of rows M and n words; a (M by k words), b (k by n words) */
static int dot(int kind, int pp, int d, int a, int b) {
    int n = tiles.bytes[d] / 4, k = tiles.bytes[a] / 4;
    if (!tiles.configured || d == a || d == b || a == b) return 0;
    if (tiles.rows[d] != tiles.rows[a] || tiles.rows[b] != k || tiles.bytes[b] != 4 * n) return 0;
    unsigned mode = _mm_getcsr();
    _mm_setcsr((mode & ~0x6000u) | 0x8040u | 0x1f80u); /* flush, denormals are zero, to nearest */
    for (int m = 0; m < tiles.rows[d]; m++)
        for (int j = 0; j < n; j++) {
            uint8_t *to = &tiles.data[d][m][4 * j];
            if (kind == 0x5c) {
                float sums[2] = {0, 0}, total;
                for (int w = 0; w < k; w++)
                    for (int part = 0; part < 2; part++) {
                        uint16_t x, y;
                        memcpy(&x, &tiles.data[a][m][4 * w + 2 * part], 2);
                        memcpy(&y, &tiles.data[b][w][4 * j + 2 * part], 2);
                        sums[part] = __builtin_fmaf(wide(x), wide(y), sums[part]);
                    }
                memcpy(&total, to, 4);
                total += sums[0] + sums[1];
                memcpy(to, &total, 4);
            } else {
                /* pp: 0 uu, 1 us, 2 su, 3 ss */
                uint32_t total;
                memcpy(&total, to, 4);
                for (int w = 0; w < k; w++)
                    for (int e = 0; e < 4; e++) {
                        uint8_t x = tiles.data[a][m][4 * w + e], y = tiles.data[b][w][4 * j + e];
                        int left = pp & 2 ? (int8_t)x : x, right = pp & 1 ? (int8_t)y : y;
                        total += (uint32_t)(left * right);
                    }
                memcpy(to, &total, 4);
            }
        }
    _mm_setcsr(mode);
    return 1;
}

/* Executes the instruction at the program counter; its length, or 0. */
static int execute(greg_t *regs) {
    const uint8_t *at = (const uint8_t *)regs[REG_RIP];
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || (at[2] & 0x84)) return 0;
    int x = !(at[1] & 0x40), base_high = !(at[1] & 0x20), pp = at[2] & 3;
    int vvvv = (~at[2] >> 3) & 15, op = at[3], mod = at[4] >> 6, reg = (at[4] >> 3) & 7;
    int rm = at[4] & 7, length = 5;
    if (mod == 3) {
        if (op == 0x5c && pp == 2) return dot(op, pp, reg, rm, vvvv) ? length : 0;
        if (op == 0x5e) return dot(op, pp, reg, rm, vvvv) ? length : 0;
        if (op == 0x49 && pp == 0 && at[4] == 0xc0) {
            memset(&tiles, 0, sizeof tiles);
            return length;
        }
        if (op == 0x49 && pp == 3 && rm == 0 && tiles.configured) {
            memset(tiles.data[reg], 0, sizeof tiles.data[reg]);
            return length;
        }
        return 0;
    }
    int64_t address = 0, step = 0;
    if (rm == 4) {
        int scale = at[5] >> 6, index = ((at[5] >> 3) & 7) | x << 3, base = at[5] & 7;
        length = 6;
        if (index != 4) step = regs[REGISTERS[index]] << scale;
        if (base == 5 && mod == 0) {
            int32_t far;
            memcpy(&far, at + length, 4);
            address = far, length += 4;
        } else
            address = regs[REGISTERS[base | base_high << 3]];
    } else if (rm == 5 && mod == 0) {
        int32_t far;
        memcpy(&far, at + length, 4);
        length += 4;
        address = regs[REG_RIP] + length + far;
    } else
        address = regs[REGISTERS[rm | base_high << 3]];
    if (mod == 1) address += (int8_t)at[length], length += 1;
    if (mod == 2) {
        int32_t far;
        memcpy(&far, at + length, 4);
        address += far, length += 4;
    }
    if (op == 0x49 && pp == 0 && reg == 0) {
        const uint8_t *config = (const uint8_t *)address;
        memset(&tiles, 0, sizeof tiles);
        if (config[0] != 1) return 0;
        for (int t = 0; t < 8; t++) {
            memcpy(&tiles.bytes[t], config + 16 + 2 * t, 2);
            tiles.rows[t] = config[48 + t];
            if (tiles.rows[t] > 16 || tiles.bytes[t] > 64) return 0;
        }
        tiles.configured = 1;
        return length;
    }
    if (op == 0x4b && rm == 4 && (pp == 2 || pp == 3) && tiles.configured) {
        for (int r = 0; r < tiles.rows[reg]; r++) {
            void *row = (void *)(address + (step * r));
            if (pp == 3)
                memcpy(tiles.data[reg][r], row, tiles.bytes[reg]);
            else
                memcpy(row, tiles.data[reg][r], tiles.bytes[reg]);
        }
        return length;
    }
    return 0;
}

static void handle(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    int length = execute(regs);
    if (length) {
        regs[REG_RIP] += length;
        __atomic_add_fetch(&amx_count, 1, __ATOMIC_RELAXED);
    } else
        sigaction(SIGILL, &before, 0); /* once more, to whoever came before */
}

int amx_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGILL, &action, &before);
}

int amx_remove(void) { return sigaction(SIGILL, &before, 0); }
