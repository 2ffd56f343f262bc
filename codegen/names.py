"""Identifiers of generated C, C++ and CMake: valid, unlike all names of the languages and their headers, and each one
different, also where case is not told apart (enumerators are in capitals, and some file systems do not)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

# Keywords of C23 and C++23.
KEYWORDS = frozenset(
    """alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class
    co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype
    default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int
    long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch
    template this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void
    volatile wchar_t while xor xor_eq""".split()  # noqa: SIM905
)

# Macros that headers of C and C++, of POSIX and compilers define: in small letters, in capitals, and errno's values.
_MACROS = frozenset(
    """alloca assert complex errno imaginary isfinite isgreater isinf isless isnan isnormal issubnormal isunordered
    linux major makedev math_errhandling minor offsetof signbit stderr stdin stdout strdupa strndupa unix va_arg va_copy
    va_end va_start be16toh be32toh be64toh htobe16 htobe32 htobe64 htole16 htole32 htole64 le16toh le32toh le64toh
    BUFSIZ EOF FILENAME_MAX FOPEN_MAX INFINITY I MAXFLOAT NAN NDEBUG NULL NFDBITS RAND_MAX SNAN SNANF SNANL TMP_MAX WEOF
    BIG_ENDIAN LITTLE_ENDIAN PDP_ENDIAN BYTE_ORDER EXIT_FAILURE EXIT_SUCCESS L_tmpnam P_tmpdir
    E2BIG EACCES EADDRINUSE EADDRNOTAVAIL EADV EAFNOSUPPORT EAGAIN EALREADY EBADE EBADF EBADFD EBADMSG EBADR EBADRQC
    EBADSLT EBFONT EBUSY ECANCELED ECHILD ECHRNG ECOMM ECONNABORTED ECONNREFUSED ECONNRESET EDEADLK EDEADLOCK
    EDESTADDRREQ EDOM EDOTDOT EDQUOT EEXIST EFAULT EFBIG EHOSTDOWN EHOSTUNREACH EHWPOISON EIDRM EILSEQ EINPROGRESS EINTR
    EINVAL EIO EISCONN EISDIR EISNAM EKEYEXPIRED EKEYREJECTED EKEYREVOKED ELIBACC ELIBBAD ELIBEXEC ELIBMAX ELIBSCN
    ELNRNG ELOOP EMEDIUMTYPE EMFILE EMLINK EMSGSIZE EMULTIHOP ENAMETOOLONG ENAVAIL ENETDOWN ENETRESET ENETUNREACH ENFILE
    ENOANO ENOBUFS ENOCSI ENODATA ENODEV ENOENT ENOEXEC ENOKEY ENOLCK ENOLINK ENOMEDIUM ENOMEM ENOMSG ENONET ENOPKG
    ENOPROTOOPT ENOSPC ENOSR ENOSTR ENOSYS ENOTBLK ENOTCONN ENOTDIR ENOTEMPTY ENOTNAM ENOTRECOVERABLE ENOTSOCK ENOTSUP
    ENOTTY ENOTUNIQ ENXIO EOPNOTSUPP EOVERFLOW EOWNERDEAD EPERM EPFNOSUPPORT EPIPE EPROTO EPROTONOSUPPORT EPROTOTYPE
    ERANGE EREMCHG EREMOTE EREMOTEIO ERESTART ERFKILL EROFS ESHUTDOWN ESOCKTNOSUPPORT ESPIPE ESRCH ESRMNT ESTALE
    ESTRPIPE ETIME ETIMEDOUT ETOOMANYREFS ETXTBSY EUCLEAN EUNATCH EUSERS EWOULDBLOCK EXDEV EXFULL""".split()  # noqa: SIM905
)
# Families of macros of the same headers (INT8_MAX, M_PI, SEEK_SET), and luminal's own.
_FAMILIES = re.compile(
    r"(ATOMIC|CHAR|CLOCK|CLONE|CPU|DBL|FD|FLT|FP|HUGE|INT|INTMAX|INTPTR|INT\d+|INT_FAST\d+|INT_LEAST\d+|LC|LDBL|LLONG|LM|"
    r"LONG|M|MATH|MB|PTHREAD|PTRDIFF|SCHAR|SCHED|SEEK|SHRT|SIG|SIZE|STDERR|STDIN|STDOUT|TIME|UCHAR|UINT|UINTMAX|UINTPTR|"
    r"UINT\d+|UINT_FAST\d+|UINT_LEAST\d+|ULLONG|ULONG|USHRT|WCHAR|WINT)_[A-Z0-9_]+"
)

LONGEST = 100  # characters: symbols and file names get something before and behind them


def is_taken(name: str) -> bool:
    """Whether ``name`` is a keyword or a macro."""
    return name in KEYWORDS or name in _MACROS or _FAMILIES.fullmatch(name) is not None


def plain(name: str) -> str:
    """``name`` in ASCII letters, digits and single underscores between them: C++ reserves some of the others, and
    generated code ends its own names with one. Empty where nothing is left."""
    return re.sub(r"_+", "_", re.sub(r"[^0-9A-Za-z]", "_", name))[:LONGEST].strip("_")


def identifiers(names: Sequence[str], taken: Collection[str] = ()) -> list[str]:
    """Identifiers of C and C++ that resemble the names, each one different, in small letters too, and none of
    ``taken``: ``input.1`` becomes ``input_1``."""
    result: list[str] = []
    used: set[str] = set()
    for name in names:
        base = plain(name) or "value"
        base = f"value_{base}" if base[0].isdigit() else base
        base = f"{base}_value" if is_taken(base) or base in taken else base
        candidate, suffix = base, 2
        while candidate.lower() in used:
            candidate, suffix = f"{base}_{suffix}", suffix + 1
        used.add(candidate.lower())
        result.append(candidate)
    return result
