/* An etcd of a version that never was, which behaves on a copy of the data and badly on the data itself, or the reverse.
   Built with -DREAL="path of etcd" -DVERSION="3.6.98" -DMODE="ends". */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Changes a file beside etcd's configuration by a script of sed. */
static void change(char *configuration, const char *script, const char *file) {
    char command[4096];
    snprintf(command, sizeof command, "sed -i '%s' \"$(dirname '%s')/%s\"", script, configuration, file);
    if (system(command) != 0)
        exit(5);
}

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
    } else if (on_a_copy && strcmp(MODE, "other-data") == 0) {
        change(arguments[2], "s/value/valuE/g", "data/member/snap/db");
    } else if (on_a_copy && strcmp(MODE, "no-data") == 0) {
        change(arguments[2], "/^data-dir:/s|/data|/empty|", "etcd.conf.yaml");
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
