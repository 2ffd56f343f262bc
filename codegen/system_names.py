"""Names that a library cannot have: the system's own libraries and headers, and what C declares in every program.

A model NAME is the library libNAME.so, the headers NAME.h and NAME.hpp, the C functions NAME_run and so on, and the C++
namespace NAME. The names are those of GNU's C library and of macOS's together, so that a model has one name everywhere.
"""

from __future__ import annotations

# Libraries of the system: a model of that name would be linked or loaded in their place.
_LIBRARIES = """
    anl asan atomic c crypt cuda cudart dl gcc gcc_eh gcc_s gomp itm lsan m mvec nsl nvrtc objc omp pthread quadmath
    resolv rt ssp stdc supc system tsan ubsan unwind util z
"""

# Headers NAME.h that others include, in this order those of C (<time.h>, of which <ctime> is made), of POSIX, of the C
# libraries themselves, of compilers, and of CUDA and Python: with the model's folder among those of headers, the
# model's would be read in their place.
_HEADERS = """
    assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic
    stdbit stdbool stdckdint stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype
    aio cpio dirent dlfcn endian fcntl fmtmsg fnmatch ftw glob grp iconv langinfo libgen libintl monetary mqueue
    ndbm netdb nl_types poll pthread pwd regex sched search semaphore spawn strings stropts syslog tar termios
    ulimit unistd utime utmpx wait wordexp
    aliases alloca ar argp argz byteswap copyfile crypt elf envz err error execinfo features fstab fts gconv
    getopt gshadow ifaddrs iofbf lastlog link malloc mcheck memory mntent nss obstack paths printf pty re_comp
    regexp resolv runetype sgtty shadow stab sysexits term termcap termio thread_db tic ttyent ucontext utmp values wait
    xlocale zconf zlib
    adxintrin arm_neon cpuid emmintrin immintrin intrin omp quadmath unwind varargs xmmintrin
    cuda_runtime frameobject pyconfig python pythread structmember
"""

# Functions that the headers of C declare, and those of POSIX that compilers' C++ headers include: a namespace cannot
# have the name of a global function. Those of <math.h> are there for each type of floating-point numbers.
_MATH = """
    acos acosh asin asinh atan atan2 atanh canonicalize cbrt ceil copysign cos cosh drem erf erfc exp exp10 exp2 expm1
    fabs fdim finite floor fma fmax fmaximum fmin fminimum fmod frexp fromfp gamma hypot ilogb j0 j1 jn ldexp lgamma
    llogb llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint nextafter nextdown nexttoward nextup
    pow remainder remquo rint round roundeven scalb scalbln scalbn significand sin sincos sinh sqrt tan tanh tgamma
    trunc y0 y1 yn
"""
_FUNCTIONS = """
    daddl ddivl dfmal dmull dsqrtl dsubl fadd faddl fdiv fdivl ffma ffmal fmul fmull fsqrt fsqrtl fsub fsubl
    isinf isinff isinfl isnan isnanf isnanl
    isalnum isalpha isascii isblank iscntrl isdigit isgraph islower isprint ispunct isspace isupper isxdigit toascii
    tolower toupper duplocale freelocale localeconv newlocale setlocale uselocale
    gsignal kill killpg longjmp psignal raise setjmp sigaction sigaddset sigaltstack sigblock sigdelset sigemptyset
    sigfillset sighold sigignore siglongjmp sigmask signal sigpause sigpending sigprocmask sigqueue sigrelse sigset
    sigsetjmp sigsuspend sigwait ssignal
    asprintf clearerr ctermid cuserid dprintf fclose fdopen feof ferror fflush fgetc fgetpos fgets fileno flockfile
    fmemopen fopen fprintf fputc fputs fread freopen fscanf fseek fseeko fsetpos ftell ftello ftrylockfile funlockfile
    funopen fwrite getc getchar getdelim getline gets getw pclose perror popen printf putc putchar puts putw remove
    rename renameat rewind scanf setbuf setbuffer setlinebuf setvbuf snprintf sprintf sscanf tempnam tmpfile tmpnam
    ungetc vasprintf vdprintf vfprintf vfscanf vprintf vscanf vsnprintf vsprintf vsscanf
    abort abs alloca atexit atof atoi atol atoll bsearch calloc clearenv daemon div drand48 ecvt erand48 exit fcvt free
    gcvt getenv getloadavg getpt getsubopt grantpt heapsort initstate jrand48 l64a a64l labs lcong48 ldiv llabs lldiv
    lrand48 malloc mblen mbstowcs mbtowc mergesort mkdtemp mkostemp mkstemp mktemp mrand48 nrand48 putenv ptsname qsort
    rand random realloc reallocarray reallocf realpath seed48 setenv setstate srand srand48 srandom strtod strtof strtol
    strtold strtoll strtoq strtoul strtoull strtouq system unlockpt unsetenv valloc wcstombs wctomb
    basename bcmp bcopy bzero dirname ffs ffsl ffsll index memccpy memchr memcmp memcpy memfrob memmem memmove mempcpy
    memrchr memset rawmemchr rindex stpcpy stpncpy strcasecmp strcasestr strcat strchr strchrnul strcmp strcoll strcpy
    strcspn strdup strerror strfry strlcat strlcpy strlen strmode strncasecmp strncat strncmp strncpy strndup strnlen
    strnstr strpbrk strrchr strsep strsignal strspn strstr strtok strverscmp strxfrm swab
    adjtime asctime clock ctime difftime dysize futimes getdate getitimer gettimeofday gmtime localtime lutimes mktime
    nanosleep posix2time pselect select setitimer settimeofday strftime strptime time time2posix timegm timelocal tzset
    tzsetwall utimes
    btowc fgetwc fgetws fputwc fputws fwide fwprintf fwscanf getwc getwchar mbrlen mbrtowc mbsinit mbsrtowcs putwc
    putwchar swprintf swscanf ungetwc vfwprintf vfwscanf vswprintf vswscanf vwprintf vwscanf wcpcpy wcpncpy wcrtomb
    wcscasecmp wcscat wcschr wcscmp wcscoll wcscpy wcscspn wcsdup wcsftime wcslen wcsncasecmp wcsncat wcsncmp wcsncpy
    wcsnlen wcspbrk wcsrchr wcsrtombs wcsspn wcsstr wcstod wcstof wcstok wcstol wcstold wcstoll wcstoul wcstoull wcswcs
    wcswidth wcsxfrm wctob wcwidth wmemchr wmemcmp wmemcpy wmemmove wmempcpy wmemset wprintf wscanf
    iswalnum iswalpha iswblank iswcntrl iswctype iswdigit iswgraph iswlower iswprint iswpunct iswspace iswupper
    iswxdigit towctrans towlower towupper wctrans
    access acct alarm brk chdir chmod chown chroot clone close closefrom confstr creat crypt dup dup2 dup3 eaccess
    encrypt endusershell euidaccess execl execle execlp execv execve execveat execvp execvpe faccessat fallocate fchdir
    fchmod fchmodat fchown fchownat fcntl fdatasync fexecve flock fork fpathconf fstat fstatat fsync ftruncate futimens
    getcpu getcwd getdomainname getdtablesize getegid getentropy geteuid getgid getgroups gethostid gethostname getlogin
    getmode getopt getpagesize getpass getpgid getpgrp getpid getppid getresgid getresuid getsid gettid getuid getumask
    getusershell getwd isatty issetugid lchmod lchown link linkat lockf lseek lstat madvise mincore minherit mkdir
    mkdirat mkfifo mkfifoat mknod mknodat mlock mlockall mmap mount mprotect mremap msync munlock munlockall munmap nice
    open openat pathconf pause pipe pipe2 pread profil pwrite read readahead readlink readlinkat revoke rmdir sbrk
    setdomainname setegid seteuid setgid setgroups sethostid sethostname setlogin setmode setns setpgid setpgrp setregid
    setresgid setresuid setreuid setsid setuid setusershell sleep splice stat statx symlink symlinkat sync syncfs
    syscall sysconf tcgetpgrp tcsetpgrp tee truncate ttyname ttyslot ualarm umask undelete unlink unlinkat unshare
    usleep utimensat vfork vhangup vmsplice write
"""

# Global types and variables of the same headers.
_TYPES = """
    daylight div_t drand48_data environ fpos_t iovec itimerspec itimerval lconv ldiv_t lldiv_t max_align_t mode_t off_t
    optarg opterr optind option optopt pid_t random_data sched_param sigcontext siginfo_t signgam sigset_t sigval
    sigvec size_t ssize_t stack_t suboptarg sys_errlist sys_nerr sys_siglist time_t timespec timeval timezone tm tzname
    u_char u_int u_long u_short uint ulong ushort wctype_t wint_t
"""

# Names that no namespace may have: a program's entry point, and an alias that <cxxabi.h> declares.
_PROGRAM = "main abi"

# Prefixes of functions of C libraries that end as a model's functions do: shm_open, sem_close.
_PREFIXES = "catalog dbm iconv mq sem shm"

# Targets that CMake makes itself, which no library of a project may be called.
_TARGETS = """
    all all_build clean depend edit_cache help install list_install_components package package_source preinstall
    rebuild_cache run_tests test zero_check
"""

# Compared without case: some file systems do not tell Time.h from time.h.
FILES = frozenset(f"{_LIBRARIES} {_HEADERS} {_TARGETS}".split())
GLOBALS = frozenset(
    [
        *f"{_FUNCTIONS} {_TYPES} {_PROGRAM} {_PREFIXES}".split(),
        *(f"{name}{suffix}" for name in _MATH.split() for suffix in ("", "f", "l")),
    ]
)
