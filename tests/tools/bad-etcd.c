/* An etcd of a version that never was, which behaves on a copy of the data and badly on the data itself, or the reverse.
   Built with -DREAL="path of etcd" -DVERSION="3.6.98" -DMODE="ends". */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments) {
    int on_a_copy = count > 2 && strstr(arguments[2], "/trial/") != NULL;
    if (count == 2 && strcmp(arguments[1], "--version") == 0) {
        puts("etcd Version: " VERSION);
        return 0;
    }
    if (strcmp(MODE, "ends-on-the-copy") == 0) {
        if (on_a_copy) {
            fputs("a bad build ends on the copy\n", stderr);
            return 3;
        }
    } else if (!on_a_copy) {
        if (strcmp(MODE, "ends") == 0) {
            fputs("a bad build ends\n", stderr);
            return 3;
        }
        if (strcmp(MODE, "silent") == 0)
            for (;;)
                pause();
        if (strcmp(MODE, "serves-then-ends") == 0) {
            pid_t etcd = getpid();
            if (fork() == 0) {
                for (int file = 0; file < 256; file++)
                    close(file); /* the member's lock among them */
                sleep(4);
                kill(etcd, SIGKILL);
                kill(etcd, SIGQUIT); /* the first process of a container is not killed from inside */
                return 0;
            }
        }
    }
    execv(REAL, arguments);
    return 4;
}
