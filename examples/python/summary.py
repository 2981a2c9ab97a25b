"""vendor-summary: what each vendor is owed, over a set of UBL invoices.

An agent without any library. It reads one JSON document on standard input, with
the run's input under "input", and writes its result as the last line on standard
output: {"output": ...}, or {"error": {"code", "message", "retryable"}} and an
exit code that is not 0. What it writes to standard error becomes the run's log.
"""

import base64
import json
import sys
import xml.etree.ElementTree as ElementTree
from decimal import Decimal, InvalidOperation, localcontext

MAX_DOCUMENTS = 1000
MAX_DIGITS = 40
UBL = "urn:oasis:names:specification:ubl:schema:xsd:"
NAMES = {"cac": UBL + "CommonAggregateComponents-2", "cbc": UBL + "CommonBasicComponents-2"}
KINDS = {"{%sInvoice-2}Invoice" % UBL: 1, "{%sCreditNote-2}CreditNote" % UBL: -1}
VENDOR = "cac:AccountingSupplierParty/cac:Party/"


class Refused(Exception):
    """The input will be no better on the next attempt."""


class Builder(ElementTree.TreeBuilder):
    """Builds no document that declares entities: they can make a small file huge, and UBL has no use for them."""

    def doctype(self, name, pubid, system):
        raise Refused("it has a document type declaration; UBL has none")


def content(document):
    """The bytes of a file as a run's input carries it."""
    if not isinstance(document, dict):
        raise Refused("want a file: an object with name, and text or base64")
    if isinstance(document.get("text"), str):
        return document["text"].encode()
    if isinstance(document.get("base64"), str):
        return base64.b64decode(document["base64"], validate=True)
    raise Refused("it has neither text nor base64")


def read(document):
    """The vendor, the currency and the amount payable of one document."""
    root = ElementTree.fromstring(content(document), ElementTree.XMLParser(target=Builder()))
    if root.tag not in KINDS:
        raise Refused("it is neither a UBL invoice nor a credit note")
    amount = root.find("cac:LegalMonetaryTotal/cbc:PayableAmount", NAMES)
    if amount is None or not (amount.text or "").strip():
        raise Refused("it has no cbc:PayableAmount")
    text = amount.text.strip()
    if len(text) > MAX_DIGITS or text.strip("+-.0123456789"):
        raise Refused("its cbc:PayableAmount is no decimal number")
    vendor = root.findtext(VENDOR + "cac:PartyLegalEntity/cbc:RegistrationName", "", NAMES).strip()
    vendor = vendor or root.findtext(VENDOR + "cac:PartyName/cbc:Name", "", NAMES).strip()
    currency = root.findtext("cbc:DocumentCurrencyCode", "", NAMES).strip()
    if not vendor or not currency:
        raise Refused("it names no vendor or no currency")
    return vendor, currency, KINDS[root.tag] * Decimal(text)


def summarize(given):
    """The output for an input {"documents": [file, ...]}."""
    documents = given.get("documents") if isinstance(given, dict) else None
    if not isinstance(documents, list) or not 0 < len(documents) <= MAX_DOCUMENTS:
        raise Refused("documents: want a list of 1 to %d files" % MAX_DOCUMENTS)
    vendors = {}
    for number, document in enumerate(documents):
        try:
            vendor, currency, amount = read(document)
        except (Refused, ElementTree.ParseError, ValueError, InvalidOperation, LookupError) as error:
            raise Refused("documents[%d]: %s" % (number, error)) from error
        entry = vendors.setdefault(vendor, {"vendor": vendor, "documents": 0, "payable": {}})
        entry["documents"] += 1
        entry["payable"][currency] = entry["payable"].get(currency, Decimal(0)) + amount
    for entry in vendors.values():
        entry["payable"] = {currency: format(amount, "f") for currency, amount in sorted(entry["payable"].items())}
    return {"vendors": [vendors[name] for name in sorted(vendors)]}


def main():
    try:
        run = json.load(sys.stdin)
        with localcontext() as context:
            context.prec = 2 * MAX_DIGITS  # a thousand amounts add up without rounding
            output = summarize(run["input"])
    except Refused as refusal:
        print(json.dumps({"error": {"code": "RequestInvalid", "message": str(refusal)[:500], "retryable": False}}))
        return 1
    print("%d vendors" % len(output["vendors"]), file=sys.stderr)
    print(json.dumps({"output": output}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
