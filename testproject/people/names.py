"""Generates names for the contacts in the directory."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST = """
Aaron Ada Adrian Agnes Aisha Alan Alejandra Alexei Amara Amelia Amir Ana Anders Andrea Anita Anna Antonio
Anya Ariel Arjun Arthur Astrid Aurora Ayumi Beatrice Ben Bianca Birgit Boris Bruno Camille Carla Carlos
Cecilia Chen Chidi Chloe Clara Claude Colin Cora Cyrus Dalia Daniel Daria David Deepa Denis Diana Diego
Dmitri Dora Edgar Edith Elena Eli Elif Emil Emma Enzo Erika Esther Eva Fatima Felix Fiona Flora Francis
Freya Gabriel Gemma George Gita Greta Hana Hannah Haruto Hassan Hector Heidi Helen Henrik Hugo Ibrahim Ida
Igor Imani Ines Ingrid Irene Isaac Isabel Ivan Jack Jamila Jan Jasmine Javier Joan Johan Jonas Josef Judith
Julia Kaito Karim Karin Kate Keiko Kemal Kofi Lara Lars Laura Leila Leo Lina Linh Lucas Lucia Luis Magda
Maja Malik Marco Maria Marta Mateo Maya Mei Mila Minh Miriam Nadia Naomi Nia Nikolai Nina Noah Nora Olga
Oliver Omar Oscar Paula Pavel Pedro Petra Priya Rafael Rania Rosa Ruben Ruth Samir Sara Selma Simon Sofia
Stefan Sven Tamar Tariq Teresa Thomas Tomas Ursula Valentina Vera Victor Wanda Wei Yara Yusuf Zoe
"""

LAST = """
Abbott Adeyemi Aguilar Ahmed Akhtar Albrecht Almeida Andersen Antonov Arai Aydin Bakker Banerjee Barros
Bauer Becker Bell Benitez Berg Bianchi Blanc Bondar Borg Bose Brandt Brennan Byrne Cabral Campos Cardoso
Castillo Chang Chavez Chopra Cohen Conti Correia Costa Cruz Dahl Das Delgado Demir Diallo Diaz Dubois Dumont
Eriksen Esposito Evans Farkas Fernandes Ferrari Fischer Flores Fontaine Fraser Fuentes Fujita Gallo Garcia
Gill Girard Gomez Greco Gruber Gupta Haddad Hansen Hassan Hayashi Herrera Hoffmann Horvat Huang Ibarra Ito
Ivanova Jansen Jensen Jimenez Joshi Kaminski Kapoor Kaur Keller Khan Kim Klein Kovacs Kowalski Kumar Larsen
Laurent Leroy Lewis Lim Lopez Lund Maier Malik Mancini Martin Mbeki Medina Mehta Mendes Meyer Mishra Molina
Moreno Morris Mori Murphy Nagy Navarro Nguyen Nilsson Nowak Olsen Ortega Osman Owusu Park Patel Pereira
Petrov Pham Popescu Quinn Ramos Rao Reyes Ricci Rivera Rossi Roy Ruiz Sahin Salazar Sanchez Santos Sato
Schmidt Schulz Shah Silva Singh Sokolov Soto Suzuki Svensson Tanaka Torres Tran Turner Vargas Vega Vogel
Wagner Walsh Wang Weber Wolf Wong Yamada Yilmaz Young Zhang Zimmermann
"""


def full_names(count: int) -> Iterator[tuple[str, str]]:
    """Yield `count` different (first name, last name), always the same ones.

    There are about 29,000 pairs; after that, last names get a number.
    """
    pairs = [(first, last) for first in FIRST.split() for last in LAST.split()]
    random.Random(1).shuffle(pairs)  # noqa: S311
    for index in range(count):
        first, last = pairs[index % len(pairs)]
        round_ = index // len(pairs)
        yield first, f"{last} {round_ + 1}" if round_ else last
