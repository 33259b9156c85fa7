"""Check digits of personal and payment numbers. Pure arithmetic over strings that already have the right form.

Each function takes the number with or without its separators and answers whether it checks out. Sources: ISO 7064 and
ISO/IEC 7812 (cards), ISO 13616 (IBAN), Real Decreto 1065/2007 (NIF), Receita Federal IN 2.119/2022 and 2.229/2024
(CNPJ, alphanumeric since 2026), RENAPO (CURP), SAT (RFC), AFIP RG 10/97 (CUIT), DIAN (NIT), SUNAT (RUC), SRI (RUC).
"""

from __future__ import annotations

from collections.abc import Sequence

NIF_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
CIF_LETTERS = "JABCDEFGHI"
CURP_ALPHABET = "0123456789ABCDEFGHIJKLMNÑOPQRSTUVWXYZ"
RFC_ALPHABET = "0123456789ABCDEFGHIJKLMN&OPQRSTUVWXYZ Ñ"
_DESCENDING = range(100, 1, -1)


def bare(text: str) -> str:
    """Upper case, letters, digits and `&` only."""
    return "".join([sign for sign in text.upper() if sign.isalnum() or sign == "&"])


def weighted(digits: str, weights: Sequence[int]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=True))


def luhn(text: str) -> bool:
    digits = [int(sign) for sign in text if sign.isdigit()]
    doubled = [digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def mod_97(text: str) -> bool:
    """IBAN: country and check digits behind, letters as two digits, remainder 1."""
    number = bare(text)
    moved = number[4:] + number[:4]
    return moved.isascii() and int("".join([str(int(sign, 36)) for sign in moved])) % 97 == 1


# ------------------------------------------------------------------------------------------------------- Spain


def nif(text: str) -> bool:
    """DNI with its letter, and the K, L, M numbers of those who have no DNI."""
    number = bare(text)
    digits = number[1:-1] if number[0] in "KLM" else number[:-1]
    return digits.isdigit() and NIF_LETTERS[int(digits) % 23] == number[-1]


def nie(text: str) -> bool:
    number = bare(text)
    return NIF_LETTERS[int(str("XYZ".index(number[0])) + number[1:-1]) % 23] == number[-1]


def cif(text: str) -> bool:
    """A company's NIF. Sources differ on which kinds check with a digit and which with a letter: either counts."""
    number = bare(text)
    digits, check = number[1:-1], number[-1]
    odd = sum(sum(divmod(int(digit) * 2, 10)) for digit in digits[0::2])
    control = -(odd + sum(int(digit) for digit in digits[1::2])) % 10
    return check in (str(control), CIF_LETTERS[control])


def social_security(text: str) -> bool:
    """Spanish affiliation number: province, number, two digits that are a remainder by 97."""
    number = bare(text)
    province, serial, check = int(number[:2]), int(number[2:10]), int(number[10:])
    whole = province * 10_000_000 + serial if serial < 10_000_000 else province * 100_000_000 + serial
    return whole % 97 == check


# ----------------------------------------------------------------------------------------------- Latin America


def cpf(text: str) -> bool:
    digits = bare(text)
    if digits == digits[0] * 11:
        return False
    return all(weighted(digits[:size], _DESCENDING[-size:]) * 10 % 11 % 10 == int(digits[size]) for size in (9, 10))


def cnpj(text: str) -> bool:
    """Also the alphanumeric form: a sign is worth its code minus that of `0`."""
    number = bare(text)
    if number == number[0] * 14 or not number.isascii():
        return False
    values = [ord(sign) - 48 for sign in number]
    for size, weights in ((12, (5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2)), (13, (6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2))):
        rest = sum(value * weight for value, weight in zip(values[:size], weights, strict=True)) % 11
        if values[size] != (0 if rest < 2 else 11 - rest):
            return False
    return True


def curp(text: str) -> bool:
    number = bare(text)
    total = sum(CURP_ALPHABET.index(sign) * (18 - place) for place, sign in enumerate(number[:17]))
    return number[17].isdigit() and -total % 10 == int(number[17])


def rfc(text: str) -> bool:
    number = bare(text).rjust(13)
    total = sum(RFC_ALPHABET.index(sign) * (13 - place) for place, sign in enumerate(number[:12]))
    return "0123456789A"[-total % 11] == number[12]


def rut(text: str) -> bool:
    """Chile: digits weighted 2 to 7 from the right; a remainder of 10 is written K."""
    number = bare(text)
    total = sum(int(digit) * (2 + place % 6) for place, digit in enumerate(reversed(number[:-1])))
    return "0123456789K0"[11 - total % 11] == number[-1]


def cuit(text: str) -> bool:
    """Argentina: CUIT, CUIL and CDI."""
    digits = bare(text)
    return "012345678990"[11 - weighted(digits[:10], (5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11] == digits[10]


def nit(text: str) -> bool:
    """Colombia."""
    digits = bare(text)
    primes = (3, 7, 13, 17, 19, 23, 29, 37, 41, 43, 47, 53, 59, 67, 71)
    total = sum(int(digit) * prime for digit, prime in zip(reversed(digits[:-1]), primes, strict=False))
    return "01987654321"[total % 11] == digits[-1]


def ec_cedula(text: str) -> bool:
    """Ecuador: province, a third digit up to 6, and Luhn."""
    digits = bare(text)
    return _ec_province(digits) and int(digits[2]) <= 6 and luhn(digits[:10])


def ec_ruc(text: str) -> bool:
    """Ecuador: of persons a cédula and an office number; of companies and public bodies their own weights."""
    digits = bare(text)
    kind = int(digits[2])
    if not _ec_province(digits) or digits[10:] == "000" or kind in (7, 8):
        return False
    public = weighted(digits[:9], (3, 2, 7, 6, 5, 4, 3, 2, 1)) % 11 == 0 and digits[9:] != "0000"
    if kind == 9:
        return public or weighted(digits[:10], (4, 3, 2, 7, 6, 5, 4, 3, 2, 1)) % 11 == 0
    return (kind == 6 and public) or luhn(digits[:10])


def _ec_province(digits: str) -> bool:
    return 1 <= int(digits[:2]) <= 24 or digits[:2] in ("30", "50")


def pe_ruc(text: str) -> bool:
    digits = bare(text)
    return (11 - weighted(digits[:10], (5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11) % 10 == int(digits[10])


def pe_dni(text: str) -> bool:
    """Peru: the digit or letter that may follow the eight digits of a DNI."""
    number = bare(text)
    rest = weighted(number[:8], (3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return number[8] in ("65432110987"[rest], "KJIHGFEDCBA"[rest])


def clabe(text: str) -> bool:
    """Mexico: bank, place, account; weights 3, 7, 1."""
    digits = bare(text)
    total = sum(int(digit) * weight % 10 for digit, weight in zip(digits[:17], (3, 7, 1) * 6, strict=False))
    return -total % 10 == int(digits[17])


def uy_cedula(text: str) -> bool:
    digits = bare(text)
    return -weighted(digits[:7], (2, 9, 8, 7, 6, 3, 4)) % 10 == int(digits[7])


def ve_rif(text: str) -> bool:
    number = bare(text)
    kind = {"V": 4, "E": 8, "J": 12, "P": 16, "G": 20}[number[0]]
    return "00987654321"[(kind + weighted(number[1:9], (3, 2, 7, 6, 5, 4, 3, 2))) % 11] == number[9]
