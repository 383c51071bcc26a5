"""Signs a bundle's root digest with an SSH key, and verifies it, offline.

What is signed says who vouches for the evidence, not what it says: a failing run is signed alike.
The signature lies beside the bundle, for the manifest names every file within.
"""

from __future__ import annotations

from pathlib import Path

from tprig import command
from tprig.bundle import Bundle, BundleError

NAMESPACE = "tprig-bundle"
"""Of SSH signatures: one that was made for another purpose is not taken."""
DEADLINE_S = 60.0


class SignatureError(BundleError):
    """A bundle cannot be signed, or its signature is not what is asked for."""


def signature_path(root: Path) -> Path:
    """Where a bundle's signature is looked for: `<bundle>.sig`, beside it."""
    root = root.absolute()
    return root.with_name(f"{root.name}.sig")


def sign(bundle: Bundle, key: Path, target: Path) -> None:
    """Sign a bundle.

    Args:
        bundle: sealed and undamaged; its verdicts do not matter.
        key: a private SSH key, or the public one of a key that an agent holds.
        target: the signature's file.

    Raises:
        SignatureError: there is no sound digest to sign, or ssh-keygen refuses.
    """
    done = _keygen(["-Y", "sign", "-f", str(key.absolute()), "-n", NAMESPACE], _message(bundle))
    if not done.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise SignatureError(f"{key}: ssh-keygen returned no signature")
    target.write_bytes(done)


def verify(bundle: Bundle, signature: Path, signers: Path) -> str:
    """Return who signed the bundle, of those whom a file of allowed signers names.

    Args:
        bundle: as it was loaded.
        signature: as `sign` wrote it.
        signers: lines of `principal key-type key`, as of ssh-keygen's ALLOWED SIGNERS.

    Raises:
        SignatureError: there is no signature, it is of somebody else, or of other evidence.
    """
    message = _message(bundle)
    for path, what in ((signature, "a signature"), (signers, "a file of allowed signers")):
        if not path.is_file():
            raise SignatureError(f"expected {what} at {path}, found none")
    base = ["-s", str(signature.absolute()), "-f", str(signers.absolute())]
    found = _keygen(["-Y", "find-principals", *base], b"").decode(errors="replace").split()
    if not found:
        raise SignatureError(f"{signature}: signed by nobody whom {signers} names")
    identity = found[0]
    _keygen(["-Y", "verify", *base, "-I", identity, "-n", NAMESPACE], message)
    return identity


def _message(bundle: Bundle) -> bytes:
    if bundle.damaged or bundle.digest is None:
        raise SignatureError(
            f"{bundle.root}: expected a sealed and undamaged bundle, found "
            f"{'a damaged' if bundle.damaged else 'an unsealed'} one; a signature is of the root "
            "digest, and this has none to rely on"
        )
    return f"tprig bundle {bundle.digest}\n".encode()


def _keygen(arguments: list[str], data: bytes) -> bytes:
    try:
        done = command.run(["ssh-keygen", *arguments], deadline_s=DEADLINE_S, data=data)
    except command.CommandError as error:
        raise SignatureError(f"ssh-keygen cannot be run: {error}; install OpenSSH") from None
    if done.returncode:
        said = (done.stderr + done.stdout).decode(errors="replace").strip().splitlines()
        raise SignatureError(f"ssh-keygen {arguments[1]}: {said[-1] if said else 'refused'}")
    return done.stdout
